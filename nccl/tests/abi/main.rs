//! The library as programs of other languages see it.

mod c_programs;
mod programs;
