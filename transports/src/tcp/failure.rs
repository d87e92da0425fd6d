//! Why a link failed, in a form that can be told again: a link that has failed stays failed.

use std::io;

use annulus_plan::{Fingerprint, Rank};

use super::TRANSPORT;
use super::record::{RecordError, record_error};
use crate::link::LinkError;

#[derive(Debug)]
pub(super) enum Failure {
    Closed,
    Mismatch { theirs: Fingerprint, ours: Fingerprint },
    Length { ours: Fingerprint, expected: usize, got: usize },
    Protocol(String),
    Record(RecordError),
    Io { operation: &'static str, source: io::Error },
}

impl Failure {
    /// What the system said about a socket: that the peer is gone, or something worse.
    pub(super) fn from_io(operation: &'static str, source: io::Error) -> Self {
        if let Some(error) = record_error(&source) {
            return Self::Record(error);
        }
        match source.kind() {
            io::ErrorKind::ConnectionReset
            | io::ErrorKind::ConnectionAborted
            | io::ErrorKind::BrokenPipe
            | io::ErrorKind::NotConnected => Self::Closed,
            _ => Self::Io { operation, source },
        }
    }

    /// The error for the caller.
    pub(super) fn error(&self, peer: Rank) -> LinkError {
        match *self {
            Self::Closed => LinkError::Closed { peer, transport: TRANSPORT },
            Self::Mismatch { theirs, ours } => LinkError::Mismatch { peer, theirs, ours },
            Self::Length { ours, expected, got } => LinkError::Length { peer, ours, expected, got },
            Self::Protocol(ref what) => LinkError::Protocol { peer, what: what.clone() },
            Self::Record(source) => LinkError::Record { peer, source },
            Self::Io { operation, ref source } => {
                let source = match source.raw_os_error() {
                    Some(code) => io::Error::from_raw_os_error(code),
                    None => io::Error::new(source.kind(), source.to_string()),
                };
                LinkError::Io { peer, operation, source }
            }
        }
    }
}
