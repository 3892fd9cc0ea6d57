#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    farshore_fuzz::check("merge_patch", bytes);
});
