//! The bodies of the fuzz targets, over the committed corpus and over random input.

#[path = "../fuzz/bodies/control_frames.rs"]
mod control_frames;
#[path = "../fuzz/bodies/flight_records.rs"]
mod flight_records;
#[path = "../fuzz/bodies/hostlist.rs"]
mod hostlist;
#[path = "../fuzz/replay.rs"]
mod replay;
#[path = "../fuzz/bodies/unique_id.rs"]
mod unique_id;

use annulus::bootstrap::{UniqueId, UniqueIdError, read_frames};
use proptest::prelude::*;

#[test]
fn control_frames_replays() {
    replay::replay("control_frames", control_frames::run);
}

#[test]
fn flight_records_replay() {
    replay::replay("flight_records", flight_records::run);
}

#[test]
fn hostlist_replays() {
    replay::replay("hostlist", hostlist::run);
}

#[test]
fn unique_id_replays() {
    replay::replay("unique_id", unique_id::run);
}

/// A corpus of frames that all were damaged would exercise little.
#[test]
fn the_corpus_holds_sound_frames() {
    for (name, data, frames) in [
        ("join", include_bytes!("../fuzz/corpus/control_frames/join").as_slice(), 1),
        ("table", include_bytes!("../fuzz/corpus/control_frames/table"), 1),
        ("table_cut", include_bytes!("../fuzz/corpus/control_frames/table_cut"), 0),
        ("refused_missing", include_bytes!("../fuzz/corpus/control_frames/refused_missing"), 1),
        ("refused_settings", include_bytes!("../fuzz/corpus/control_frames/refused_settings"), 1),
        ("agreement", include_bytes!("../fuzz/corpus/control_frames/agreement"), 8),
        ("losses", include_bytes!("../fuzz/corpus/control_frames/losses"), 8),
        ("heartbeat_cut", include_bytes!("../fuzz/corpus/control_frames/heartbeat_cut"), 0),
        ("notices", include_bytes!("../fuzz/corpus/control_frames/notices"), 4),
        ("stalls", include_bytes!("../fuzz/corpus/control_frames/stalls"), 4),
        ("surveys", include_bytes!("../fuzz/corpus/control_frames/surveys"), 4),
        ("stalled_cut", include_bytes!("../fuzz/corpus/control_frames/stalled_cut"), 0),
    ] {
        assert_eq!(read_frames(&data[1..], data[0].into()), frames, "{name}");
    }
    let mut id = [0; 128];
    let seed = include_bytes!("../fuzz/corpus/unique_id/one_address");
    id[..seed.len()].copy_from_slice(seed);
    assert_eq!(UniqueId::from_bytes(&id), Err(UniqueIdError::Damaged), "only for its checksum");
    let checksum = blake3::hash(&id[..120]);
    id[120..].copy_from_slice(&checksum.as_bytes()[..8]);
    assert!(UniqueId::from_bytes(&id).is_ok());
}

/// Damage anywhere in a dump is survived.
#[test]
fn damaged_flight_records_are_read_or_refused() {
    let sound = include_bytes!("../fuzz/corpus/flight_records/three_ranks");
    assert_eq!(annulus::flight::read_records(sound).map(|records| records.len()), Ok(3));
    let mut seed = 1_u64;
    for _ in 0..200 {
        let mut bytes = sound.to_vec();
        for _ in 0..20 {
            seed = seed
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            // Most of it is empty: half of the damage goes where something is.
            let within = if seed & 1 == 0 { bytes.len() } else { 3 * 4096 };
            let place = (seed >> 33) as usize % within;
            bytes[place] = (seed >> 25) as u8;
        }
        bytes.truncate(bytes.len() - (seed >> 40) as usize % 100);
        flight_records::run(&bytes);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_bytes(data in prop::collection::vec(any::<u8>(), 0..300)) {
        control_frames::run(&data);
        flight_records::run(&data);
        hostlist::run(&data);
        unique_id::run(&data);
    }
}
