//! Numbers the links that plans name.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use crate::{LinkId, Rank};

/// One direction between two ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Route {
    pub(super) from: u32,
    pub(super) to: u32,
    index: u32,
}

#[derive(Debug, Default)]
pub(super) struct LinkTable {
    numbers: HashMap<Route, u32, BuildHasherDefault<RouteHasher>>,
    routes: Vec<Route>,
    last: Option<(Route, u32)>,
}

impl LinkTable {
    /// The number of a link; `None` when numbers run out. Ranks are below 2^32.
    pub(super) fn number(&mut self, from: Rank, to: Rank, index: usize) -> Option<u32> {
        let index = u32::try_from(index).ok()?;
        let route = Route { from: from as u32, to: to as u32, index };
        if let Some((last, number)) = self.last
            && last == route
        {
            return Some(number);
        }
        let next = self.routes.len() as u32;
        let number = *self.numbers.entry(route).or_insert(next);
        if number == next {
            if next == super::program::NONE {
                return None;
            }
            self.routes.push(route);
        }
        self.last = Some((route, number));
        Some(number)
    }

    pub(super) fn routes(&self) -> &[Route] {
        &self.routes
    }

    /// The link, seen from its receiver.
    pub(super) fn seen_by_receiver(&self, number: u32) -> LinkId {
        let route = self.routes[number as usize];
        LinkId { peer: route.from as Rank, index: route.index as usize }
    }
}

/// Mixes three small integers; the default hasher would take longer than the rest of taking in a plan.
#[derive(Default)]
struct RouteHasher(u64);

impl Hasher for RouteHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u32(byte.into());
        }
    }

    fn write_u32(&mut self, value: u32) {
        // The multiplier is 2^64 divided by the golden ratio.
        self.0 = (self.0.rotate_left(23) ^ u64::from(value)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 ^= self.0 >> 32;
    }
}
