//! The memory of one rank, and who touched each element last.

use crate::Rank;

use super::fault::Fault;
use super::layout::{Area, Layout};
use super::order::{EventId, History, LoanId};
use super::value::{Value, Values};

/// The memory of one rank.
pub(super) struct Memory {
    rank: Rank,
    regions: Vec<Vec<Cell>>,
}

/// One element.
#[derive(Clone)]
struct Cell {
    value: Value,
    /// Who wrote it; nobody yet where it holds what it held at the start.
    written: Option<EventId>,
    /// Who has read it since.
    readings: Vec<Reading>,
}

#[derive(Clone, Copy)]
enum Reading {
    /// Done.
    At(EventId),
    /// By a receiver that was handed a reference: done when it has received.
    Lent(LoanId),
}

/// How an element is read.
#[derive(Clone, Copy)]
pub(super) enum Access {
    /// At once.
    Copied,
    /// From now until the loan is over.
    Lent(LoanId),
}

/// Why an element cannot be read.
pub(super) enum Unreadable {
    /// Nobody has written it.
    Undefined,
    /// It should be a contribution and is none any longer.
    Overwritten,
    /// It should be none and still is one.
    Contribution,
}

impl Memory {
    /// What `rank` begins with: its sources are defined, everything else is not.
    pub(super) fn new(rank: Rank, layout: &Layout, values: &mut Values) -> Self {
        let blank = Cell { value: Value::UNDEFINED, written: None, readings: Vec::new() };
        let mut regions: Vec<Vec<Cell>> =
            layout.regions.iter().map(|&elements| vec![blank.clone(); elements]).collect();
        for placement in layout.buffers.iter().filter(|buffer| buffer.defined) {
            let source = values.source(rank, placement.buffer);
            let cells = &mut regions[placement.region][placement.start..];
            let elements = placement.bytes / layout.unit;
            for (element, cell) in cells[..elements].iter_mut().enumerate() {
                cell.value = source.at(element);
            }
        }
        Self { rank, regions }
    }

    /// Reads `area` in `event`. `Err`: this element cannot be read.
    /// `contribution` says whether it must be one, if that matters.
    pub(super) fn read(
        &mut self,
        area: Area,
        event: EventId,
        access: Access,
        contribution: Option<bool>,
        history: &mut History,
    ) -> Result<Vec<Value>, (usize, Unreadable)> {
        let cells = &mut self.regions[area.region][area.start..area.start + area.len];
        let mut values = Vec::with_capacity(area.len);
        for (offset, cell) in cells.iter_mut().enumerate() {
            let element = area.start + offset;
            if !cell.value.is_defined() {
                return Err((element, Unreadable::Undefined));
            }
            match contribution {
                Some(true) if cell.written.is_some() => {
                    return Err((element, Unreadable::Overwritten));
                }
                Some(false) if cell.written.is_none() => {
                    return Err((element, Unreadable::Contribution));
                }
                _ => {}
            }
            values.push(cell.value);
            if let Some(written) = cell.written {
                history.require(written, event, self.rank, area.region, element);
            }
            match access {
                Access::Lent(loan) => cell.readings.push(Reading::Lent(loan)),
                Access::Copied => cell.note(event, history),
            }
        }
        Ok(values)
    }

    /// Writes `values` to `area` in `event`.
    pub(super) fn write(
        &mut self,
        area: Area,
        values: &[Value],
        event: EventId,
        layout: &Layout,
        history: &mut History,
    ) -> Result<(), Fault> {
        let cells = &mut self.regions[area.region][area.start..area.start + area.len];
        for (offset, (cell, &value)) in cells.iter_mut().zip(values).enumerate() {
            let element = area.start + offset;
            if let Some(written) = cell.written {
                history.require(written, event, self.rank, area.region, element);
            }
            for reading in cell.readings.drain(..) {
                match reading {
                    Reading::At(read) => {
                        history.require(read, event, self.rank, area.region, element);
                    }
                    Reading::Lent(loan) => history
                        .require_returned(loan, event, self.rank, area.region, element)
                        .map_err(|send| Fault::Overwritten {
                            send,
                            write: history.place(event),
                            span: layout.span(area.region, element),
                        })?,
                }
            }
            cell.written = Some(event);
            cell.value = value;
        }
        Ok(())
    }

    /// What `area` holds.
    pub(super) fn values(&self, area: Area) -> impl Iterator<Item = Value> {
        let cells = &self.regions[area.region][area.start..area.start + area.len];
        cells.iter().map(|cell| cell.value)
    }

    /// Whether the plan wrote this element.
    pub(super) fn was_written(&self, region: usize, element: usize) -> bool {
        self.regions[region][element].written.is_some()
    }
}

impl Cell {
    /// Remembers a reading; the latest of a lane stands for its earlier ones.
    fn note(&mut self, event: EventId, history: &History) {
        let same_lane = |reading: &&mut Reading| matches!(reading, Reading::At(earlier) if history.same_lane(*earlier, event));
        match self.readings.iter_mut().find(same_lane) {
            Some(reading) => *reading = Reading::At(event),
            None => self.readings.push(Reading::At(event)),
        }
    }
}
