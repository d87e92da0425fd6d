//! Communicator handles: numbers that look like pointers and are never dereferenced.
//!
//! A handle names a slot and how often that slot was used before. So a handle that was destroyed, or never was one, is
//! found out, whatever its bits.

use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock, RwLockReadGuard};

/// `ncclComm_t`. No address of a process looks like one: `0x414e`, 28 bits of generation, 20 bits of slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub struct Handle(pub(crate) usize);

const _: () = assert!(size_of::<usize>() == 8, "handles need 64 bits");

const MARK: usize = 0x414e << 48;
const SLOT_BITS: u32 = 20;
const MAX_GENERATION: usize = (1 << 28) - 1;

/// Slots of the first chunk; each further one doubles the table.
const FIRST_CHUNK: usize = 64;
const CHUNKS: usize = 15;

impl Handle {
    /// `NULL`.
    pub(crate) const NULL: Self = Self(0);

    fn new(slot: usize, generation: usize) -> Self {
        Self(MARK | generation << SLOT_BITS | slot)
    }

    /// Slot and generation, if it looks like a handle.
    fn parts(self) -> Option<(usize, usize)> {
        let slot = self.0 & ((1 << SLOT_BITS) - 1);
        (self.0 >> 48 == MARK >> 48).then_some((slot, self.0 >> SLOT_BITS & MAX_GENERATION))
    }

    /// A few bits that differ between communicators that live at the same time, and mostly between others.
    pub(crate) fn digest(self) -> u32 {
        (self.0 as u32).wrapping_mul(0x9e37_79b1) ^ (self.0 >> SLOT_BITS) as u32
    }
}

/// What a handle leads to.
#[derive(Debug)]
pub(crate) enum Found<T> {
    Live(Arc<T>),
    /// It was destroyed.
    Gone,
    /// It never was a handle.
    Foreign,
}

/// All living `T`s.
pub(crate) struct Table<T> {
    /// Grows and never moves, so that a look-up takes no lock but its slot's.
    chunks: [OnceLock<Box<[Slot<T>]>>; CHUNKS],
    free: Mutex<Free>,
}

/// A living `T`, see [`Table::read`].
pub(crate) struct Reading<'a, T>(RwLockReadGuard<'a, Entry<T>>);

impl<T> Reading<'_, T> {
    #[inline]
    pub(crate) fn get(&self) -> Option<&T> {
        self.0.value.as_deref()
    }
}

type Slot<T> = RwLock<Entry<T>>;

struct Entry<T> {
    /// Of the handle that the slot has, or will next have.
    generation: usize,
    value: Option<Arc<T>>,
}

#[derive(Default)]
struct Free {
    slots: Vec<usize>,
    used: usize,
}

impl<T> Table<T> {
    pub(crate) const fn new() -> Self {
        Self {
            chunks: [const { OnceLock::new() }; CHUNKS],
            free: Mutex::new(Free { slots: Vec::new(), used: 0 }),
        }
    }

    /// A handle for the value that `make` makes of it; `None` when there are a million already.
    pub(crate) fn insert(&self, make: impl FnOnce(Handle) -> T) -> Option<(Handle, Arc<T>)> {
        let slot = {
            let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
            match free.slots.pop() {
                Some(slot) => slot,
                None => {
                    let slot = free.used;
                    let (chunk, _) = place(slot);
                    let chunk = self.chunks.get(chunk)?;
                    let fresh = || Entry { generation: 1, value: None };
                    chunk.get_or_init(|| {
                        (0..chunk_size(place(slot).0)).map(|_| RwLock::new(fresh())).collect()
                    });
                    free.used += 1;
                    slot
                }
            }
        };
        let mut entry = self.slot(slot)?.write().unwrap_or_else(PoisonError::into_inner);
        let handle = Handle::new(slot, entry.generation);
        let value = Arc::new(make(handle));
        entry.value = Some(value.clone());
        Some((handle, value))
    }

    #[inline]
    pub(crate) fn find(&self, handle: Handle) -> Found<T> {
        let Some((slot, generation)) = handle.parts() else { return Found::Foreign };
        let Some(slot) = self.slot(slot) else { return Found::Foreign };
        let entry = slot.read().unwrap_or_else(PoisonError::into_inner);
        match &entry.value {
            Some(value) if entry.generation == generation => Found::Live(value.clone()),
            _ if (1..entry.generation).contains(&generation) => Found::Gone,
            _ => Found::Foreign,
        }
    }

    /// What a handle leads to, which cannot be removed while the result lives: quicker than [`find`](Self::find), for what ends soon
    /// or can be made to end.
    #[inline]
    pub(crate) fn read(&self, handle: Handle) -> Option<Reading<'_, T>> {
        let (slot, generation) = handle.parts()?;
        let entry = self.slot(slot)?.read().unwrap_or_else(PoisonError::into_inner);
        (entry.generation == generation && entry.value.is_some()).then_some(Reading(entry))
    }

    /// Ends the handle, and returns what it led to.
    pub(crate) fn remove(&self, handle: Handle) -> Found<T> {
        let Some((number, generation)) = handle.parts() else { return Found::Foreign };
        let Some(slot) = self.slot(number) else { return Found::Foreign };
        let mut entry = slot.write().unwrap_or_else(PoisonError::into_inner);
        if entry.generation != generation || entry.value.is_none() {
            let was_one = (1..entry.generation).contains(&generation);
            return if was_one { Found::Gone } else { Found::Foreign };
        }
        let value = entry.value.take().expect("it was just looked at");
        entry.generation += 1;
        let worn_out = entry.generation > MAX_GENERATION;
        drop(entry);
        if !worn_out {
            self.free.lock().unwrap_or_else(PoisonError::into_inner).slots.push(number);
        }
        Found::Live(value)
    }

    /// The handles of all that live.
    pub(crate) fn handles(&self) -> Vec<Handle> {
        let used = self.free.lock().unwrap_or_else(PoisonError::into_inner).used;
        (0..used)
            .filter_map(|slot| {
                let entry = self.slot(slot)?.read().unwrap_or_else(PoisonError::into_inner);
                entry.value.as_ref().map(|_| Handle::new(slot, entry.generation))
            })
            .collect()
    }

    #[inline]
    fn slot(&self, slot: usize) -> Option<&Slot<T>> {
        let (chunk, index) = place(slot);
        self.chunks.get(chunk)?.get()?.get(index)
    }
}

/// The chunk of a slot, and where in it. Chunk k > 0 holds as many slots as all before it.
#[inline]
fn place(slot: usize) -> (usize, usize) {
    let chunk = (usize::BITS - (slot / FIRST_CHUNK).leading_zeros()) as usize;
    let first = if chunk == 0 { 0 } else { FIRST_CHUNK << (chunk - 1) };
    (chunk, slot - first)
}

fn chunk_size(chunk: usize) -> usize {
    if chunk == 0 { FIRST_CHUNK } else { FIRST_CHUNK << (chunk - 1) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// Against a plain list: live handles lead to their values, ended ones are known as such.
        #[test]
        fn handles_are_told_apart(steps in prop::collection::vec((any::<bool>(), any::<prop::sample::Index>()), 1..300)) {
            let table = Table::new();
            let (mut live, mut gone) = (Vec::new(), Vec::new());
            for (number, (insert, which)) in steps.into_iter().enumerate() {
                if insert || live.is_empty() {
                    let (handle, _) = table.insert(|_| number).expect("room");
                    live.push((handle, number));
                } else {
                    let (handle, number) = live.swap_remove(which.index(live.len()));
                    match table.remove(handle) {
                        Found::Live(value) => prop_assert_eq!(*value, number),
                        other => prop_assert!(false, "{:?}", other),
                    }
                    gone.push(handle);
                }
            }
            for (handle, number) in &live {
                match table.find(*handle) {
                    Found::Live(value) => prop_assert_eq!(*value, *number),
                    other => prop_assert!(false, "{:?}", other),
                }
            }
            for handle in gone {
                prop_assert!(matches!(table.find(handle), Found::Gone));
                prop_assert!(matches!(table.remove(handle), Found::Gone));
            }
            prop_assert_eq!(table.handles().len(), live.len());
        }

        #[test]
        fn other_bits_are_no_handles(bits: usize) {
            let table = Table::new();
            let (handle, _) = table.insert(|_| ()).expect("room");
            prop_assume!(bits != handle.0);
            prop_assert!(matches!(table.find(Handle(bits)), Found::Foreign));
            let later = Handle(handle.0 + (1 << SLOT_BITS));
            prop_assert!(matches!(table.find(later), Found::Foreign));
        }
    }

    #[test]
    fn slots_fill_chunks_without_gaps() {
        let mut expected = (0..4).flat_map(|chunk| (0..chunk_size(chunk)).map(move |i| (chunk, i)));
        for slot in 0..512 {
            assert_eq!(Some(place(slot)), expected.next());
        }
    }
}
