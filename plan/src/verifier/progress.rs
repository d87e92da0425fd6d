//! Runs the lanes of all ranks until everything is done or nobody can go on.

use std::collections::VecDeque;

use super::fault::{Blocked, Fault, Wait};
use super::layout::Layout;
use super::memory::{Access, Memory, Unreadable};
use super::order::{EventId, History, LoanId};
use super::structure::{Operand, Program};
use super::value::{Mismatch, Value, Values};
use super::{Limits, Report, Rules};

/// A run that came to its end.
pub(super) struct Run {
    pub(super) values: Values,
    pub(super) memories: Vec<Memory>,
    pub(super) history: History,
    program: Program,
}

impl Run {
    /// Runs `program` to its end.
    pub(super) fn to_the_end(
        program: Program,
        layouts: &[Layout],
        rules: &Rules,
        limits: &Limits,
    ) -> Result<Self, Fault> {
        let mut values = Values::new(layouts.len());
        let memories = layouts
            .iter()
            .enumerate()
            .map(|(rank, layout)| Memory::new(rank, layout, &mut values))
            .collect();
        let mut machine = Machine {
            lanes: program.lanes.iter().map(|_| LaneState::default()).collect(),
            links: program.links.iter().map(|_| VecDeque::new()).collect(),
            ready: (0..program.lanes.len()).collect(),
            layouts,
            rules,
            limits,
            run: Self { values, memories, history: History::default(), program },
        };
        while let Some(lane) = machine.ready.pop_front() {
            machine.lanes[lane].waits = None;
            machine.lanes[lane].waits = machine.advance(lane)?;
        }
        let blocked: Vec<Blocked> = machine.blocked().collect();
        if blocked.is_empty() { Ok(machine.run) } else { Err(Fault::Stuck { blocked }) }
    }

    /// See [`History::check`].
    pub(super) fn check_order(&self, layouts: &[Layout]) -> Result<(), Fault> {
        self.history.check(layouts)
    }

    pub(super) fn report(&self) -> Report {
        let Program { messages, bytes, .. } = self.program;
        Report { messages, bytes, orderings: self.history.requirements() }
    }
}

/// The plans of all ranks while they run.
struct Machine<'a> {
    run: Run,
    lanes: Vec<LaneState>,
    links: Vec<VecDeque<Piece>>,
    /// Lanes that may be able to go on.
    ready: VecDeque<usize>,
    layouts: &'a [Layout],
    rules: &'a Rules,
    limits: &'a Limits,
}

/// How far a lane is.
#[derive(Default)]
struct LaneState {
    step: usize,
    /// Elements of the step that are done.
    done: usize,
    waits: Option<Wait>,
}

/// A piece of a message on a link.
struct Piece {
    values: Vec<Value>,
    sent: EventId,
    loan: Option<LoanId>,
}

impl Machine<'_> {
    /// Runs `lane` until it has to wait, or ends.
    fn advance(&mut self, lane: usize) -> Result<Option<Wait>, Fault> {
        while let Some(step) = self.run.program.lanes[lane].steps.get(self.lanes[lane].step) {
            let talks = step.from.is_some() || step.to.is_some();
            let left = step.elements - self.lanes[lane].done;
            let len = if talks { left.min(self.run.program.piece) } else { left };
            if talks || len > 0 {
                if let Some(wait) = self.wait(step.from, step.to) {
                    return Ok(Some(wait));
                }
                self.piece(lane, len)?;
            }
            let state = &mut self.lanes[lane];
            if len == left {
                *state = LaneState { step: state.step + 1, ..LaneState::default() };
            } else {
                state.done += len;
            }
        }
        Ok(None)
    }

    /// What a step with these links has to wait for before its next piece. A step that passes on what it
    /// receives leaves the piece on its link until there is room for it on the next.
    fn wait(&self, from: Option<usize>, to: Option<usize>) -> Option<Wait> {
        let link = |number: usize| self.run.program.links[number].link;
        if let Some(from) = from.filter(|&from| self.links[from].is_empty()) {
            return Some(Wait::Message(link(from)));
        }
        to.filter(|&to| self.links[to].len() >= self.limits.link_chunks)
            .map(|to| Wait::Room(link(to)))
    }

    /// Does the next `len` elements of the lane's step.
    fn piece(&mut self, lane: usize, len: usize) -> Result<(), Fault> {
        let LaneState { step: number, done, .. } = self.lanes[lane];
        let Run { values, memories, history, program } = &mut self.run;
        let place = program.place(lane, number);
        let step = &program.lanes[lane].steps[number];
        let (memory, layout) = (&mut memories[place.rank], &self.layouts[place.rank]);

        let received = step.from.and_then(|from| self.links[from].pop_front());
        let event = history.push(lane, place, received.as_ref().map(|piece| piece.sent));
        if let Some(loan) = received.as_ref().and_then(|piece| piece.loan) {
            history.give_back(loan, event);
        }
        let lends = self.limits.references
            && program.by_reference[place.rank]
            && step.from.is_none()
            && step.to.is_some();
        let loan = lends.then(|| history.lend(event));
        let access = loan.map_or(Access::Copied, Access::Lent);

        let mut operands = [None, None, received.map(|piece| piece.values)];
        for (values, operand) in operands.iter_mut().zip([&step.read, &step.also]) {
            let Some(Operand { area, source }) = operand else { continue };
            let contribution = self.rules.reduces.then_some(*source);
            let read = memory.read(area.part(done, len), event, access, contribution, history);
            *values = Some(read.map_err(|(element, why)| {
                let span = layout.span(area.region, element);
                match why {
                    Unreadable::Undefined => Fault::Undefined { at: place, span },
                    Unreadable::Overwritten => Fault::NoContribution { at: place, span },
                    Unreadable::Contribution => Fault::NotFromInput { at: place, span },
                }
            })?);
        }
        let mut operands = operands.into_iter().flatten();
        let mut result = operands.next().unwrap_or_default();
        if let (Some(finish), Some(other)) = (step.combine, operands.next()) {
            for (own, other) in result.iter_mut().zip(other) {
                *own = values.combine(*own, other, finish).map_err(
                    |Mismatch { first, second, reason }| Fault::Combination {
                        at: place,
                        first,
                        second,
                        reason,
                    },
                )?;
            }
        }
        if let Some(area) = step.write {
            memory.write(area.part(done, len), &result, event, layout, history)?;
        }
        if let Some(to) = step.to {
            self.links[to].push_back(Piece { values: result, sent: event, loan });
            self.ready.extend(program.links[to].reader);
        }
        if let Some(from) = step.from {
            self.ready.extend(program.links[from].writer);
        }
        Ok(())
    }

    /// Every lane that waits.
    fn blocked(&self) -> impl Iterator<Item = Blocked> {
        self.lanes.iter().enumerate().filter_map(|(lane, state)| {
            let waits = state.waits?;
            Some(Blocked { at: self.run.program.place(lane, state.step), waits })
        })
    }
}
