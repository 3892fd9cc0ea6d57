//! The simulation repeats itself, and sees what it is there to see.

mod repeats;
