//! The barrier: in round k every rank tells the one 2^k places ahead that it, and all whom it has
//! heard of, have come. After ⌈log2 n⌉ rounds everybody has heard of everybody.

use crate::{LinkId, Plan};

use super::layout::{Layout, Steps};

pub(super) fn plan(layout: &Layout<'_>) -> Plan {
    let mut steps = Steps::new(0);
    let mut distance = 1;
    while distance < layout.world() {
        steps.signal(LinkId { peer: layout.ahead(distance), index: 0 });
        steps.wait(LinkId { peer: layout.behind(distance), index: 0 });
        distance *= 2;
    }
    layout.plan(vec![steps], 0, true)
}
