//! Notes in a rank's page that it waits, and for whom.

use std::sync::Arc;
use std::time::Duration;

use super::page::Page;
use crate::monitor::{Observer, Wait};

/// A rank that makes no progress for so long is worth knowing about.
pub(crate) const STALLED: Duration = Duration::from_millis(40);

/// The observer of a page's rank.
pub(crate) struct Waits(pub(crate) Arc<Page>);

impl Observer for Waits {
    fn waiting(&self, wait: &mut Wait<'_>) {
        self.0.waits();
        if wait.quiet >= STALLED && !self.0.knows_for_whom() {
            self.0.waits_for(&wait.blocked_on());
        }
    }
}
