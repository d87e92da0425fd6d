//! A dump, or the file of another process, which holds anything.

use annulus::flight::{Merged, read_records};

pub(crate) fn run(data: &[u8]) {
    let Ok(records) = read_records(data) else { return };
    for merged in Merged::all(records) {
        let _ = merged.to_string();
        for record in &merged.ranks {
            let _ = record.to_string();
            let _ = record.collective(record.collectives);
        }
    }
}
