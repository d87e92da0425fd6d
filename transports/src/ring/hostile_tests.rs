//! What another process may write into a header line: anything.

use std::ptr::NonNull;
use std::sync::Arc;

use annulus_plan::Fingerprint;
use proptest::prelude::*;

use super::line::Line;
use super::{Geometry, Peer, Reach, Reference, RingMemory, RingReceiver};
use crate::link::{LinkError, RecvLink};
use crate::mapping::Mapping;
use crate::memory::Store;

/// A peer that shares no memory but the ring.
struct Nothing;

impl Reach for Nothing {
    fn name(&self, _: *const u8, _: usize) -> Option<Reference> {
        None
    }

    fn resolve(&mut self, _: Reference) -> Result<NonNull<u8>, LinkError> {
        Err(LinkError::Protocol { peer: 1, what: "a reference".to_owned() })
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// Whatever the line says, the receiver reads within the ring or reports the sender.
    #[test]
    fn a_line_of_anything_stays_within_the_ring(
        words in any::<[u64; 7]>(),
        small in any::<[u16; 2]>(),
        kind in 0_u64..4,
        plausible in any::<bool>(),
    ) {
        let geometry = Geometry::new(4, 4096).expect("a ring");
        let mapping = Arc::new(Mapping::anonymous(RingMemory::bytes(geometry)).expect("memory"));
        let memory = RingMemory::at(&mapping, 0, geometry);
        let [a, b, c, d, call, order, mut length] = words;
        let mut offset = a;
        if plausible {
            // Near the ring's size, where an error of one would show.
            offset = u64::from(small[0]) % 4200;
            length = kind << 62 | (u64::from(small[1]) % 4200) << 32;
        }
        memory.publish(0, Line([offset, b, c, d, call, order, length, Line::flag_of(0)]));
        let peer = Peer { rank: 1, doorbell: None, transport: "test" };
        let mut receiver = RingReceiver::new(memory, peer, Nothing);
        let mut target = vec![0; 8192];
        let expected = Fingerprint { call, order, tag: length as u32 };
        match receiver.try_peek() {
            Ok(piece) => {
                let bytes = piece.expect("the flag is there").bytes;
                prop_assert!(bytes.len() <= 4096);
                prop_assert!(bytes.iter().all(|&byte| byte == 0) || bytes.len() <= 32);
                let got = receiver.try_recv(&expected, &mut target, Store::Cached);
                prop_assert!(got.is_ok(), "{:?}", got);
            }
            Err(error) => prop_assert!(matches!(error, LinkError::Protocol { .. }), "{error}"),
        }
    }
}
