//! What all ranks must have in common, and how a difference is told to all of them.

use annulus::{Communicator, Rank};

use crate::error::Complaint;
use crate::model::Parameter;
use crate::{Error, Model};

/// How many bytes a rank may say about what is wrong.
const MESSAGE: usize = 1024;

/// How many differences a rank shows.
const DIFFERENCES: usize = 3;

/// Broadcasts move at most so much at a time, so that their staging memory stays small.
const STAGING: usize = 16 << 20;

/// Compares model and settings on all ranks, whatever the model is: names, order, shapes, types, what is
/// trained, and buffers.
///
/// # Errors
/// [`Error::ModelsDiffer`], on every rank.
pub(crate) fn check(comm: &Communicator, model: &Model, settings: &str) -> Result<(), Error> {
    let entries = entries(model, settings);
    let text = entries.join("\n");
    let mine = blake3::hash(text.as_bytes());
    let mut all = vec![0; 32 * comm.world_size()];
    comm.all_gather_into(mine.as_bytes(), &mut all)?;
    if all.chunks_exact(32).all(|hash| hash == &all[..32]) {
        return Ok(());
    }
    // Somebody differs, and everybody knows. Rank 0's entries go to all, who say where theirs are others.
    let mut length = [text.len() as u64];
    comm.broadcast(&mut length, 0)?;
    let mut reference = text.into_bytes();
    reference.resize(length[0] as usize, 0);
    comm.broadcast(&mut reference, 0)?;
    let reference = String::from_utf8_lossy(&reference).into_owned();
    let reference: Vec<&str> = reference.split('\n').collect();
    let complaint = compare(&entries, &reference);
    Err(Error::ModelsDiffer { differences: exchange(comm, complaint.as_deref())? })
}

/// One line for each thing that must be the same.
fn entries(model: &Model, settings: &str) -> Vec<String> {
    // Names are quoted, and newlines in them escaped.
    let line = |what: &str, index: usize, parameter: &Parameter| {
        let Parameter { name, shape, dtype, device, requires_grad } = parameter;
        let frozen = if *requires_grad { "" } else { ", frozen" };
        format!("{what} {index} {name:?} {dtype} {shape:?} on device {device}{frozen}")
    };
    let count = |what: &str, all: &[Parameter]| format!("{} {what}s", all.len());
    let mut entries = vec![
        settings.to_owned(),
        count("parameter", &model.parameters),
        count("buffer", &model.buffers),
    ];
    entries.extend(model.parameters.iter().enumerate().map(|(i, p)| line("parameter", i, p)));
    entries.extend(model.buffers.iter().enumerate().map(|(i, p)| line("buffer", i, p)));
    entries
}

fn compare(ours: &[String], reference: &[&str]) -> Option<String> {
    let all = ours.len().max(reference.len());
    let differing: Vec<String> = (0..all)
        .map(|i| {
            (
                ours.get(i).map_or("nothing", String::as_str),
                reference.get(i).copied().unwrap_or("nothing"),
            )
        })
        .filter(|(ours, theirs)| ours != theirs)
        .map(|(ours, theirs)| format!("has {ours} where rank 0 has {theirs}"))
        .collect();
    if differing.is_empty() {
        return None;
    }
    let mut text = differing.iter().take(DIFFERENCES).cloned().collect::<Vec<_>>().join(", ");
    if differing.len() > DIFFERENCES {
        text += &format!(", and {} more differences", differing.len() - DIFFERENCES);
    }
    Some(text)
}

/// Tells every rank what any rank complains of. All ranks must call it.
pub(crate) fn exchange(
    comm: &Communicator,
    complaint: Option<&str>,
) -> Result<Vec<Complaint>, annulus::Error> {
    let mut mine = [0; MESSAGE];
    let text = complaint.unwrap_or_default().as_bytes();
    let length = text.len().min(MESSAGE - 2);
    mine[..2].copy_from_slice(&(length as u16).to_le_bytes());
    mine[2..2 + length].copy_from_slice(&text[..length]);
    let mut all = vec![0; MESSAGE * comm.world_size()];
    comm.all_gather_into(&mine, &mut all)?;
    let said = |record: &[u8]| {
        let length = usize::from(u16::from_le_bytes([record[0], record[1]])).min(MESSAGE - 2);
        String::from_utf8_lossy(&record[2..2 + length]).into_owned()
    };
    Ok(all
        .chunks_exact(MESSAGE)
        .enumerate()
        .map(|(rank, record)| Complaint { rank, message: said(record) })
        .filter(|complaint| !complaint.message.is_empty())
        .collect())
}

/// The lowest rank that has not [joined](crate::Reducer::join): 0, unless ranks have unequally many steps.
///
/// It can be the root where rank 0 may not be there any longer: a joined rank cannot. Blocks; all ranks that have not
/// joined must call it.
///
/// # Errors
/// Those of [`Communicator::all_gather_into`].
pub fn first_present(comm: &Communicator) -> Result<Rank, Error> {
    Ok(present(comm)?.iter().position(|&present| present).unwrap_or(comm.rank()))
}

/// For each rank, whether it has not joined.
pub(crate) fn present(comm: &Communicator) -> Result<Vec<bool>, annulus::Error> {
    // A rank that has joined contributes zeros.
    let mut all = vec![0_u8; comm.world_size()];
    comm.all_gather_into(&[1], &mut all)?;
    Ok(all.into_iter().map(|said| said != 0).collect())
}

/// Either all ranks succeed or none: where others fail, `refuse` makes this rank's error. All ranks must call it.
pub(crate) fn together<T>(
    comm: &Communicator,
    outcome: Result<T, Error>,
    refuse: impl FnOnce(Vec<Complaint>) -> Error,
) -> Result<T, Error> {
    let message = outcome.as_ref().err().map(Error::to_string);
    let complaints = exchange(comm, message.as_deref())?;
    match outcome {
        Ok(value) if complaints.is_empty() => Ok(value),
        Ok(_) => Err(refuse(complaints)),
        Err(error) => Err(error),
    }
}

/// Replaces the values on every rank by the root's, many small ones in one message.
///
/// Every rank passes slices of the same lengths in the same order. Blocks; all ranks must call it.
///
/// # Errors
/// Those of [`Communicator::broadcast`].
pub fn broadcast_values(
    comm: &Communicator,
    values: &mut [&mut [u8]],
    root: Rank,
) -> Result<(), Error> {
    let total: usize = values.iter().map(|value| value.len()).sum();
    let mut staging = comm.alloc::<u8>(total.min(STAGING))?;
    let mut waiting: Vec<(&mut [u8], usize)> = Vec::new();
    let mut filled = 0;
    for value in values {
        let mut rest: &mut [u8] = value;
        while !rest.is_empty() {
            if filled == STAGING {
                send(comm, &mut staging, &mut waiting, &mut filled, root)?;
            }
            let length = rest.len().min(STAGING - filled);
            let (part, left) = rest.split_at_mut(length);
            waiting.push((part, filled));
            filled += length;
            rest = left;
        }
    }
    send(comm, &mut staging, &mut waiting, &mut filled, root)
}

/// Broadcasts the parts of one staging buffer.
fn send(
    comm: &Communicator,
    staging: &mut [u8],
    parts: &mut Vec<(&mut [u8], usize)>,
    filled: &mut usize,
    root: Rank,
) -> Result<(), Error> {
    if comm.rank() == root {
        for (part, at) in parts.iter() {
            staging[*at..*at + part.len()].copy_from_slice(part);
        }
    }
    if *filled > 0 {
        comm.broadcast(&mut staging[..*filled], root)?;
    }
    for (part, at) in parts.drain(..) {
        part.copy_from_slice(&staging[at..at + part.len()]);
    }
    *filled = 0;
    Ok(())
}
