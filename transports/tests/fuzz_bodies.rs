//! The bodies of the fuzz targets, over the committed corpus and over random input.

#[path = "../../fuzz/bodies/checksum_receiver.rs"]
mod checksum_receiver;
#[path = "../../fuzz/bodies/handshake_client.rs"]
mod handshake_client;
#[path = "../../fuzz/bodies/handshake_server.rs"]
mod handshake_server;
#[path = "../../fuzz/bodies/interface_filter.rs"]
mod interface_filter;
#[path = "../../fuzz/bodies/records.rs"]
mod records;
#[path = "../../fuzz/replay.rs"]
mod replay;
#[path = "../../fuzz/bodies/ring_receiver.rs"]
mod ring_receiver;
#[path = "../../fuzz/bodies/ring_sender.rs"]
mod ring_sender;
#[path = "../../fuzz/bodies/tcp_inbox.rs"]
mod tcp_inbox;

use proptest::collection::vec;
use proptest::prelude::*;
use replay::replay;

#[test]
fn corpus() {
    replay("checksum_receiver", checksum_receiver::run);
    replay("handshake_server", handshake_server::run);
    replay("handshake_client", handshake_client::run);
    replay("interface_filter", interface_filter::run);
    replay("tcp_inbox", tcp_inbox::run);
    replay("records", records::run);
    replay("ring_receiver", ring_receiver::run);
    replay("ring_sender", ring_sender::run);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn server_believes_no_random_bytes(data in vec(any::<u8>(), 0..300)) {
        handshake_server::run(&data);
    }

    #[test]
    fn client_believes_no_random_bytes(data in vec(any::<u8>(), 0..300)) {
        handshake_client::run(&data);
    }

    /// One bit anywhere is enough.
    #[test]
    fn server_notices_each_flipped_bit(piece: u8, byte in 0_usize..120, bit in 0..8) {
        handshake_server::run(&flip(piece, byte, bit));
    }

    #[test]
    fn client_notices_each_flipped_bit(piece: u8, byte in 0_usize..100, bit in 0..8) {
        handshake_client::run(&flip(piece, byte, bit));
    }

    #[test]
    fn tcp_links_survive_any_stream(data in vec(any::<u8>(), 0..2000)) {
        tcp_inbox::run(&data);
    }

    /// Damage to one byte of an honest stream, header or payload.
    #[test]
    fn tcp_links_survive_damage(step: u8, turns: u8, at in 0_usize..800, mask: u8) {
        let mut data = vec![0; at + 4];
        (data[0], data[1], data[2], data[at + 3]) = (step, turns, 1, mask);
        tcp_inbox::run(&data);
    }

    #[test]
    fn checksums_are_compared(data in vec(any::<u8>(), 0..300)) {
        checksum_receiver::run(&data);
    }

    /// One byte of a piece between sound ones.
    #[test]
    fn checksums_notice_damage(step: u8, turns: u8, length: u8, at: u8, mask in 1_u8..) {
        checksum_receiver::run(&[step, turns, 0, 9, 1, length, at, mask, 0, 9]);
    }

    #[test]
    fn openers_believe_no_random_bytes(data in vec(any::<u8>(), 0..600)) {
        records::run(&data);
    }

    /// Damage to one byte of an honest stream.
    #[test]
    fn openers_notice_damage(step: u8, at in 0_usize..429, mask in 1_u8..) {
        let mut data = vec![0; at + 3];
        (data[0], data[1], data[at + 2]) = (step, 1, mask);
        records::run(&data);
    }

    #[test]
    fn ring_receivers_survive_any_sender(data in vec(any::<u8>(), 0..300)) {
        ring_receiver::run(&data);
    }

    /// Steps whose numbers are near what is allowed.
    #[test]
    fn ring_receivers_survive_a_sender_that_knows_the_layout(
        steps in vec((1_u8..8, 0_u8..12, 0_u16..5200, 0_u16..5200), 0..40),
    ) {
        let mut data = Vec::new();
        for (step, kind, offset, length) in steps {
            data.push(step);
            let ([a, b], [c, d]) = (offset.to_le_bytes(), length.to_le_bytes());
            match step {
                1 => data.extend([kind, a, b, c, d]),
                2 => data.extend([a, b, 2, c, d]),
                4 | 5 => data.extend([c, d]),
                6 => data.push(kind),
                7 => data.push(100),
                _ => {}
            }
        }
        ring_receiver::run(&data);
    }

    #[test]
    fn ring_senders_survive_any_receiver(mut data in vec(any::<u8>(), 2..300), intact: bool) {
        if intact {
            data[1] = 0;
        }
        ring_sender::run(&data);
    }

    #[test]
    fn filters_read_back(text in "[\\^=]{0,2}[ a-z0-9,.:=^/\"-]{0,24}") {
        interface_filter::run(text.as_bytes());
    }
}

/// Input for a handshake's body: an honest peer with one bit changed.
fn flip(piece: u8, byte: usize, bit: i32) -> Vec<u8> {
    let mut data = vec![0; byte + 3];
    data[0] = piece;
    data[1] = 1;
    data[byte + 2] = 1 << bit;
    data
}
