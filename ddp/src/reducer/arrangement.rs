//! How buckets are put together anew after the first step.

use annulus::Rank;

use super::Reducer;
use super::layout::Layout;
use super::progress::{Generation, lock};
use super::status::Status;
use crate::Error;

/// What has been settled about buckets and gradients.
#[derive(Debug, Default)]
pub(super) struct Arrangement {
    /// The order of gradients in the first step, once there was one.
    pub(super) order: Option<Vec<usize>>,
    /// Whether buckets stay as they are.
    pub(super) fixed: bool,
    /// The unused parameters of the first step, with [`Unused::Static`](super::Unused::Static).
    pub(super) unused: Option<Vec<usize>>,
    /// The parameters that have no gradient after the last step.
    pub(super) without: Vec<usize>,
    /// The first rank that took no part in the last step, because it has joined.
    pub(super) joined: Option<Rank>,
}

impl Reducer {
    /// After the first step: in which order the gradients came, on the first rank that takes part.
    pub(super) fn agree_on_order(&self, statuses: &[Status], own: Vec<usize>) -> Result<(), Error> {
        let mut arrangement = lock(&self.arrangement);
        if arrangement.fixed || arrangement.order.is_some() {
            return Ok(());
        }
        let root = statuses.iter().position(|status| status.alive).unwrap_or(0);
        let mut order: Vec<u64> = own.into_iter().map(|parameter| parameter as u64).collect();
        self.shared.comm.broadcast(&mut order, root)?;
        arrangement.order = Some(order.into_iter().map(|parameter| parameter as usize).collect());
        Ok(())
    }

    /// Puts the buckets together anew, once, after the first step: all ranks in the order that they agreed on.
    pub(super) fn rearrange(&self) -> Result<(), Error> {
        let mut arrangement = lock(&self.arrangement);
        let Some(order) = arrangement.order.take() else { return Ok(()) };
        if !std::mem::replace(&mut arrangement.fixed, true) {
            self.arrange(&order, |old| old + 1)?;
        }
        Ok(())
    }

    /// Puts the buckets together in this order, if they are not. An order that is none, from another rank, is ignored.
    pub(super) fn arrange(
        &self,
        order: &[usize],
        number: impl FnOnce(u64) -> u64,
    ) -> Result<(), Error> {
        let shared = &*self.shared;
        let old = shared.generation();
        let mut left: Vec<bool> = old.layout.places.iter().map(Option::is_some).collect();
        let mut once = |&p: &usize| left.get_mut(p).is_some_and(std::mem::take);
        if !order.iter().all(&mut once) || left.contains(&true) {
            return Ok(());
        }
        let world = shared.comm.world_size();
        let layout = Layout::new(&shared.model, order, &shared.options.limits(), world);
        if layout != old.layout {
            let number = number(old.number);
            shared.replace_generation(Generation::new(&shared.comm, number, layout)?);
        }
        Ok(())
    }
}

/// All trained parameters: those that came, in that order, then those of passes before or of none.
pub(super) fn whole(mut arrivals: Vec<usize>, generation: &Generation) -> Vec<usize> {
    let members = generation.layout.buckets.iter().flat_map(|bucket| &bucket.members);
    let mut seen = vec![false; generation.layout.places.len()];
    arrivals.retain(|&parameter| !std::mem::replace(&mut seen[parameter], true));
    arrivals.extend(members.map(|member| member.parameter).filter(|&parameter| !seen[parameter]));
    arrivals
}
