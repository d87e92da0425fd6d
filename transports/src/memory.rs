//! Copying with a choice of stores.

/// How a large copy or reduction writes its result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Store {
    /// Through the cache: whoever reads next finds it there.
    #[default]
    Cached,
    /// Past the cache: for output larger than the cache, and for peers that share none with this core.
    NonTemporal,
}
