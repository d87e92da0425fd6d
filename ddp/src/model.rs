//! What a model consists of, as far as the reducer has to know.

use annulus::DataType;

/// One parameter, or one buffer, of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parameter {
    /// Its name, unique within the model.
    pub name: String,
    /// Its dimensions; a scalar has none.
    pub shape: Vec<usize>,
    /// The type of its elements.
    pub dtype: DataType,
    /// The number of the device that holds it; 0 for host memory.
    pub device: u32,
    /// Whether it is trained. One that is not has no gradient, but its value is still agreed on.
    pub requires_grad: bool,
}

impl Parameter {
    /// A trained parameter in host memory.
    pub fn new(name: impl Into<String>, shape: &[usize], dtype: DataType) -> Self {
        Self { name: name.into(), shape: shape.to_vec(), dtype, device: 0, requires_grad: true }
    }

    /// The same, not trained.
    pub fn frozen(self) -> Self {
        Self { requires_grad: false, ..self }
    }

    /// The number of its elements.
    pub fn count(&self) -> usize {
        self.shape.iter().product()
    }

    /// The number of its bytes.
    pub fn bytes(&self) -> usize {
        self.count() * self.dtype.size()
    }
}

/// A model: its parameters in an order that is the same on every rank, and its buffers.
///
/// A parameter's index in `parameters` is how the reducer is told of its gradient.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Model {
    /// Parameters, in the order in which the forward pass uses them as far as that is known.
    pub parameters: Vec<Parameter>,
    /// State that is not trained by gradients: running means and the like.
    pub buffers: Vec<Parameter>,
}

impl Model {
    /// A model without buffers.
    pub fn new(parameters: Vec<Parameter>) -> Self {
        Self { parameters, buffers: Vec::new() }
    }

    /// The names of the parameters with these indices, in quotes, at most `limit` of them.
    pub(crate) fn names(&self, indices: &[usize], limit: usize) -> String {
        let mut text = indices
            .iter()
            .take(limit)
            .map(|&index| format!("`{}`", self.parameters[index].name))
            .collect::<Vec<_>>()
            .join(", ");
        if indices.len() > limit {
            text += &format!(" and {} more", indices.len() - limit);
        }
        text
    }
}
