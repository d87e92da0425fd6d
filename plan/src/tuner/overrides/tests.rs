use super::*;

fn read(variables: &[(&str, &str)]) -> Result<Overrides, OverrideError> {
    Overrides::from_vars(|name| {
        let set = variables.iter().find(|(variable, _)| *variable == name);
        set.map(|(_, value)| (*value).to_owned())
    })
}

fn algorithms(overrides: &Overrides, kind: CollectiveKind) -> Option<Vec<Algorithm>> {
    overrides.algorithms(kind).map(|restriction| restriction.allowed.clone())
}

#[test]
fn nothing_set_allows_everything() {
    assert_eq!(read(&[]), Ok(Overrides::default()));
    assert_eq!(read(&[("ANNULUS_ALGO", "  "), ("NCCL_BUFFSIZE", "")]), Ok(Overrides::default()));
}

#[test]
fn every_name_is_read_in_any_spelling() {
    for algorithm in Algorithm::ALL {
        for spelling in
            [algorithm.name().to_owned(), algorithm.name().to_uppercase().replace('-', "_")]
        {
            let overrides = read(&[("ANNULUS_ALGO", &spelling)]).expect("a name");
            let allowed = algorithms(&overrides, CollectiveKind::AllReduce);
            assert_eq!(allowed, Some(vec![algorithm]), "{spelling}");
        }
    }
}

#[test]
fn lists_exclusions_and_single_collectives() {
    let value = "ring,tree;AllReduce:^Ring;reduce_scatter: halving-doubling ;";
    let overrides = read(&[("NCCL_ALGO", value)]).expect("valid");
    let both = Some(vec![Algorithm::Ring, Algorithm::Tree]);
    assert_eq!(algorithms(&overrides, CollectiveKind::Broadcast), both);
    let halving = Some(vec![Algorithm::HalvingDoubling]);
    assert_eq!(algorithms(&overrides, CollectiveKind::ReduceScatter), halving);
    let but_ring = algorithms(&overrides, CollectiveKind::AllReduce).expect("restricted");
    assert_eq!(but_ring, Algorithm::ALL[1..]);
    assert!(overrides.warnings().is_empty());
}

#[test]
fn what_only_nccl_has_is_left_out_by_name() {
    let overrides = read(&[("NCCL_ALGO", "NVLS,Ring"), ("NCCL_PROTO", "^LL128")]).expect("valid");
    assert_eq!(algorithms(&overrides, CollectiveKind::Reduce), Some(vec![Algorithm::Ring]));
    assert_eq!(overrides.protocols(CollectiveKind::Reduce), None);
    let warnings = overrides.warnings();
    assert!(warnings[0].contains("NVLS") && warnings[1].contains("LL128"), "{warnings:?}");
    let low_latency = read(&[("NCCL_PROTO", "LL")]).expect("valid");
    let allowed = &low_latency.protocols(CollectiveKind::Reduce).expect("restricted").allowed;
    assert_eq!(*allowed, [Protocol::LowLatency]);
}

#[test]
fn ours_win_over_nccls() {
    let overrides = read(&[
        ("ANNULUS_ALGO", "tree"),
        ("NCCL_ALGO", "ring"),
        ("ANNULUS_CHANNELS", "3"),
        ("NCCL_MAX_CTAS", "2"),
        ("ANNULUS_CHUNK", "64K"),
        ("NCCL_BUFFSIZE", "4194304"),
    ]);
    let overrides = overrides.expect("valid");
    assert_eq!(algorithms(&overrides, CollectiveKind::AllReduce), Some(vec![Algorithm::Tree]));
    let channels = overrides.channels.as_ref().expect("set");
    assert_eq!((channels.least, channels.most), (3, 3));
    assert_eq!(overrides.chunk.as_ref().expect("set").bytes, 64 << 10);
    assert_eq!(overrides.warnings().len(), 3, "{:?}", overrides.warnings());
}

#[test]
fn numbers() {
    let channels = |variables: &[(&str, &str)]| {
        let channels = read(variables).expect("valid").channels.expect("set");
        (channels.least, channels.most)
    };
    assert_eq!(channels(&[("NCCL_MIN_NCHANNELS", "4")]), (4, MAX_CHANNELS));
    assert_eq!(channels(&[("NCCL_MAX_CTAS", "2")]), (1, 2));
    assert_eq!(channels(&[("NCCL_MIN_CTAS", "4"), ("NCCL_MAX_NCHANNELS", "2")]), (4, 4));

    let chunk =
        |variable, value| read(&[(variable, value)]).expect("valid").chunk.expect("set").bytes;
    assert_eq!(chunk("NCCL_BUFFSIZE", "4194304"), 512 << 10);
    assert_eq!(chunk("ANNULUS_CHUNK", "1MiB"), 1 << 20);
    assert_eq!(chunk("ANNULUS_CHUNK", "100"), 128);
    assert_eq!(chunk("NCCL_BUFFSIZE", "1"), 64);
}

#[test]
fn nonsense_is_refused_with_the_variable_the_value_and_what_is_accepted() {
    let refused = [
        ("ANNULUS_ALGO", "rang", "ring, tree, halving-doubling"),
        ("ANNULUS_ALGO", "ring,,tree", "``"),
        ("ANNULUS_ALGO", "ring;tree", "all_reduce, reduce"),
        ("ANNULUS_ALGO", "allreduced:tree", "all_reduce, reduce"),
        ("ANNULUS_ALGO", "^", "``"),
        ("NCCL_PROTO", "fast", "simple, low-latency"),
        ("ANNULUS_CHANNELS", "0", "1 to 64"),
        ("NCCL_MAX_CTAS", "-1", "1 to 64"),
        ("ANNULUS_CHANNELS", "+4", "1 to 64"),
        ("ANNULUS_CHUNK", "K", "128K"),
        ("ANNULUS_CHUNK", "12Q", "128K"),
        ("ANNULUS_CHUNK", "99999999999999999999G", "128K"),
        ("ANNULUS_CHUNK", "1.5M", "128K"),
        ("ANNULUS_CHUNK", "2G", "128K"),
    ];
    for (variable, value, accepted) in refused {
        let error = read(&[(variable, value)]).expect_err(value).to_string();
        assert!(error.starts_with(&format!("{variable}={value}: ")), "{error}");
        assert!(error.contains(accepted), "{error}");
    }
}

#[test]
fn signatures_tell_rules_apart_and_not_their_spelling() {
    let signature = |variables: &[_]| read(variables).expect("valid").signature();
    assert_eq!(
        signature(&[("ANNULUS_ALGO", "ring"), ("ANNULUS_CHUNK", "64K")]),
        signature(&[("NCCL_ALGO", " RING"), ("NCCL_BUFFSIZE", "512K")])
    );
    let rules = [
        [].as_slice(),
        &[("ANNULUS_ALGO", "ring")],
        &[("ANNULUS_ALGO", "^ring")],
        &[("ANNULUS_ALGO", "broadcast:ring")],
        &[("ANNULUS_PROTO", "simple")],
        &[("ANNULUS_CHANNELS", "2")],
        &[("NCCL_MAX_NCHANNELS", "2")],
        &[("ANNULUS_CHUNK", "64K")],
    ];
    let signatures: std::collections::HashSet<_> = rules.map(signature).into();
    assert_eq!(signatures.len(), rules.len(), "{signatures:?}");
}
