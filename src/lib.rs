//! Annulus.
