//! A process that goes on twice: the same memory, the same virtual time, from the same line on.

use std::io;

/// The process that was forked off.
#[derive(Debug)]
pub struct Child(libc::pid_t);

/// How a child ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// It left with this code.
    Code(i32),
    /// This signal ended it.
    Signal(i32),
    /// Its time was over: see [`end_within`].
    TimedOut,
}

/// Forks: `Some` in the process that goes on, `None` in its child, in which only the calling thread
/// lives.
///
/// # Errors
/// The process has a thread besides this one and the main thread, which is at rest in `join` in a
/// program that calls this: another could hold a lock that nobody in the child would ever release.
/// Or the kernel refuses.
pub fn fork() -> io::Result<Option<Child>> {
    let threads = std::fs::read_dir("/proc/self/task")?.count();
    if threads > 2 {
        let why = format!("a process with {threads} threads cannot be forked");
        return Err(io::Error::other(why));
    }
    // SAFETY: no third thread can hold a lock, as was checked, and the main thread holds none.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => Ok(None),
        pid => Ok(Some(Child(pid))),
    }
}

impl Child {
    /// Waits for its end.
    ///
    /// # Errors
    /// Those of `waitpid`.
    pub fn wait(self) -> io::Result<Ended> {
        let mut status = 0;
        loop {
            // SAFETY: `status` outlives the call.
            if unsafe { libc::waitpid(self.0, &raw mut status, 0) } != -1 {
                break;
            }
            let error = io::Error::last_os_error();
            if error.kind() != io::ErrorKind::Interrupted {
                return Err(error);
            }
        }
        Ok(if !libc::WIFSIGNALED(status) {
            Ended::Code(libc::WEXITSTATUS(status))
        } else if libc::WTERMSIG(status) == libc::SIGALRM {
            Ended::TimedOut
        } else {
            Ended::Signal(libc::WTERMSIG(status))
        })
    }
}

/// From now on this process has so many seconds of the clock on the wall left, or, with 0, as many as
/// it likes.
pub fn end_within(seconds: u32) {
    // SAFETY: has no preconditions.
    unsafe { libc::alarm(seconds) };
}

/// Ends this process at once: nothing is dropped, no other thread is waited for.
pub fn leave(code: i32) -> ! {
    // SAFETY: has no preconditions.
    unsafe { libc::_exit(code) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_with_many_threads_is_not_forked() {
        let (done, wait) = std::sync::mpsc::channel::<()>();
        #[expect(clippy::disallowed_methods, reason = "the test is about threads")]
        let other = std::thread::spawn(move || wait.recv().is_err());
        // The main thread, this test's and the other.
        let refused = fork().unwrap_err().to_string();
        assert!(refused.contains("threads cannot be forked"), "{refused}");
        drop(done);
        assert!(other.join().unwrap());
    }
}
