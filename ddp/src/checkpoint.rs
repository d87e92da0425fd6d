//! State on disk, independent of the number of ranks.

use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File};
use std::io::Write;
use std::path::Path;

use annulus::{Communicator, DataType};
use safetensors::tensor::{Dtype, SafeTensors, TensorView};

use crate::{Error, Float, agreement};

/// Named tensors and what else it takes to go on, in a file in the safetensors format.
///
/// A checkpoint holds whole tensors, never one rank's part, so that a job of another world size can resume from it: each
/// rank takes what it needs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Checkpoint {
    tensors: BTreeMap<String, Tensor>,
    facts: BTreeMap<String, String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Tensor {
    dtype: DataType,
    shape: Vec<usize>,
    bytes: Vec<u8>,
}

impl Checkpoint {
    /// An empty one.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds or replaces a tensor.
    ///
    /// # Panics
    /// If `values` are not as many as `shape` says.
    pub fn insert<T: Float>(&mut self, name: impl Into<String>, shape: &[usize], values: &[T]) {
        assert_eq!(
            values.len(),
            shape.iter().product::<usize>(),
            "elements of a tensor of shape {shape:?}"
        );
        let bytes = bytemuck::cast_slice(values).to_vec();
        self.tensors
            .insert(name.into(), Tensor { dtype: T::DATA_TYPE, shape: shape.to_vec(), bytes });
    }

    /// A tensor's values; `None` if there is none of that name and type.
    pub fn get<T: Float>(&self, name: &str) -> Option<Vec<T>> {
        let tensor = self.tensors.get(name).filter(|tensor| tensor.dtype == T::DATA_TYPE)?;
        let mut values = vec![T::default(); tensor.bytes.len() / size_of::<T>()];
        bytemuck::cast_slice_mut(&mut values).copy_from_slice(&tensor.bytes);
        Some(values)
    }

    /// A tensor's dimensions.
    pub fn shape(&self, name: &str) -> Option<&[usize]> {
        self.tensors.get(name).map(|tensor| tensor.shape.as_slice())
    }

    /// A tensor's type.
    pub fn dtype(&self, name: &str) -> Option<DataType> {
        self.tensors.get(name).map(|tensor| tensor.dtype)
    }

    /// The names of all tensors.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    /// Notes something else to remember: the epoch, the learning rate.
    pub fn note(&mut self, name: impl Into<String>, value: impl ToString) {
        self.facts.insert(name.into(), value.to_string());
    }

    /// What was [noted](Self::note).
    pub fn noted(&self, name: &str) -> Option<&str> {
        self.facts.get(name).map(String::as_str)
    }

    /// Writes rank 0's checkpoint, or that of the [first rank](crate::first_present) that has not joined; the other
    /// ranks' need not hold anything. A file that was there before is replaced
    /// whole or not at all. Blocks until the file is on disk; all ranks must call it.
    ///
    /// # Errors
    /// [`Error::File`] on every rank, if that rank cannot write it; [`Error::Communication`].
    pub fn save(&self, comm: &Communicator, path: &Path) -> Result<(), Error> {
        let writer = agreement::first_present(comm)?;
        let outcome = if comm.rank() == writer { self.write(path) } else { Ok(()) };
        agreement::together(comm, outcome, |complaints| Error::refused(path, &complaints))
    }

    /// Reads a checkpoint on rank 0 and gives it to all ranks. Blocks; all ranks must call it.
    ///
    /// # Errors
    /// [`Error::File`] on every rank, if rank 0 cannot read it or it is not a checkpoint.
    pub fn load(comm: &Communicator, path: &Path) -> Result<Self, Error> {
        let read = || {
            let bytes = fs::read(path).map_err(|error| Error::file(path, error))?;
            Self::parse(&bytes).map_err(|problem| Error::file(path, problem))?;
            Ok(bytes)
        };
        let outcome = if comm.rank() == 0 { read() } else { Ok(Vec::new()) };
        let mut bytes =
            agreement::together(comm, outcome, |complaints| Error::refused(path, &complaints))?;
        let mut length = [bytes.len() as u64];
        comm.broadcast(&mut length, 0)?;
        bytes.resize(length[0] as usize, 0);
        comm.broadcast(&mut bytes, 0)?;
        Self::parse(&bytes).map_err(|problem| Error::file(path, problem))
    }

    fn write(&self, path: &Path) -> Result<(), Error> {
        let failed = |error: std::io::Error| Error::file(path, error);
        let bytes = self.serialize().map_err(|problem| Error::file(path, problem))?;
        let mut name = path.file_name().unwrap_or_default().to_owned();
        name.push(format!(".{}.part", std::process::id()));
        let part = path.with_file_name(name);
        let written = File::create(&part).and_then(|mut file| {
            file.write_all(&bytes)?;
            file.sync_all()?;
            fs::rename(&part, path)?;
            // The new name is on disk once the folder is.
            let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
            File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
        });
        if written.is_err() {
            // The first error counts; there may be no such file.
            let _ = fs::remove_file(&part);
        }
        written.map_err(failed)
    }

    fn serialize(&self) -> Result<Vec<u8>, String> {
        let views: Result<Vec<(&str, TensorView<'_>)>, String> = self
            .tensors
            .iter()
            .map(|(name, tensor)| {
                let dtype = to_file(tensor.dtype);
                let view = TensorView::new(dtype, tensor.shape.clone(), &tensor.bytes);
                Ok((name.as_str(), view.map_err(|error| error.to_string())?))
            })
            .collect();
        let facts: HashMap<String, String> = self.facts.clone().into_iter().collect();
        safetensors::serialize(views?, Some(facts)).map_err(|error| error.to_string())
    }

    fn parse(bytes: &[u8]) -> Result<Self, String> {
        let (_, header) = SafeTensors::read_metadata(bytes).map_err(|error| error.to_string())?;
        let facts = header.metadata().clone().unwrap_or_default().into_iter().collect();
        let file = SafeTensors::deserialize(bytes).map_err(|error| error.to_string())?;
        let mut tensors = BTreeMap::new();
        for (name, view) in file.iter() {
            let dtype = from_file(view.dtype())
                .ok_or_else(|| format!("`{name}` is {:?}: only floats are read", view.dtype()))?;
            let tensor =
                Tensor { dtype, shape: view.shape().to_vec(), bytes: view.data().to_vec() };
            tensors.insert(name.to_owned(), tensor);
        }
        Ok(Self { tensors, facts })
    }
}

/// The format's name of a gradient's type.
fn to_file(dtype: DataType) -> Dtype {
    match dtype {
        DataType::F16 => Dtype::F16,
        DataType::Bf16 => Dtype::BF16,
        DataType::F64 => Dtype::F64,
        _ => Dtype::F32,
    }
}

fn from_file(dtype: Dtype) -> Option<DataType> {
    match dtype {
        Dtype::F16 => Some(DataType::F16),
        Dtype::BF16 => Some(DataType::Bf16),
        Dtype::F32 => Some(DataType::F32),
        Dtype::F64 => Some(DataType::F64),
        _ => None,
    }
}
