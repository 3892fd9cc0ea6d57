//! Makes what a thread takes for randomness a function of a seed, so that a simulation repeats itself.
//!
//! `std`'s maps, and with them those inside kube, draw their keys from libc's `getrandom`. A program
//! that links this crate gets this crate's `getrandom` and `getentropy` in its place: `std` binds the
//! symbols weakly, so a definition in the executable wins (glibc on Linux). Threads that did not opt
//! in get the kernel's randomness as before.
//!
//! The same bytes are given for every call of a thread, so that a table that is filled once in the
//! life of a process does not move what is drawn after it.

pub mod fork;

use std::cell::Cell;
use std::ffi::{c_int, c_uint, c_void};

thread_local! {
    // Without a destructor: it may be asked at any time in the life of a thread.
    static SEED: Cell<Option<u64>> = const { Cell::new(None) };
}

/// From now on this thread's randomness is a function of `seed`; with `None` it is the kernel's
/// again. `std` draws the keys of its maps once in the life of a thread: call this first.
pub fn seed_thread(seed: Option<u64>) {
    SEED.with(|cell| cell.set(seed));
}

/// The `n`-th byte for a seed (SplitMix64).
fn byte(seed: u64, n: usize) -> u8 {
    let step = (n / 8 + 1) as u64;
    let mut z = seed.wrapping_add(step.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (z ^ (z >> 31)).to_le_bytes()[n % 8]
}

/// # Safety
/// `buffer` points to `length` writable bytes.
unsafe fn fill(seed: u64, buffer: *mut u8, length: usize) {
    for n in 0..length {
        // SAFETY: n is below length, which the caller vouches for.
        unsafe { buffer.add(n).write(byte(seed, n)) };
    }
}

/// libc's `getrandom`.
///
/// # Safety
/// As of libc's: `buffer` points to `length` writable bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn getrandom(buffer: *mut c_void, length: usize, flags: c_uint) -> isize {
    match SEED.with(Cell::get) {
        Some(seed) => {
            // SAFETY: the caller's own promise.
            unsafe { fill(seed, buffer.cast(), length) };
            length as isize
        }
        // SAFETY: the system call that libc's function makes, with the caller's own arguments.
        None => unsafe { libc::syscall(libc::SYS_getrandom, buffer, length, flags) as isize },
    }
}

/// libc's `getentropy`.
///
/// # Safety
/// As of libc's: `buffer` points to `length` writable bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn getentropy(buffer: *mut c_void, length: usize) -> c_int {
    // SAFETY: the caller's own promise.
    let got = unsafe { getrandom(buffer, length, 0) };
    if got == length as isize { 0 } else { -1 }
}

#[cfg(test)]
mod tests {
    use std::hash::{BuildHasher, RandomState};

    #[expect(
        clippy::disallowed_methods,
        reason = "the keys of a thread are drawn once in its life"
    )]
    fn key(seed: Option<u64>) -> u64 {
        std::thread::spawn(move || {
            super::seed_thread(seed);
            RandomState::new().hash_one(1_u8)
        })
        .join()
        .unwrap()
    }

    #[test]
    fn the_keys_of_maps_are_a_function_of_the_seed_on_threads_that_opted_in() {
        assert_eq!(key(Some(7)), key(Some(7)));
        assert_ne!(key(Some(7)), key(Some(8)));
        assert_ne!(key(None), key(None));
    }
}
