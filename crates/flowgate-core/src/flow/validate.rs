//! What makes a flow valid.

use super::{Flow, FlowFile, Problem};

impl Flow {
    /// The flow that `file` describes.
    pub fn new(file: FlowFile) -> Result<Self, Vec<Problem>> {
        Ok(Self::compile(file))
    }
}
