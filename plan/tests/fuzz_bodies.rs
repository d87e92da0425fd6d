//! Replays the corpora of the fuzz targets of this crate's parsers.

#[path = "../../fuzz/bodies/overrides.rs"]
mod overrides;
#[path = "../../fuzz/replay.rs"]
mod replay;

use replay::replay;

#[test]
fn corpora() {
    replay("overrides", overrides::run);
}
