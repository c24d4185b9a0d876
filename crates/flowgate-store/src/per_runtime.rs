//! What each runtime has of its own.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::runtime::{Handle, Id};

/// More runtimes than this are not remembered. One that is forgotten begins anew.
const RUNTIMES_MAX: usize = 16;

/// A value for each runtime that calls.
///
/// A connection is driven by the runtime that made it: it stands still while that one is kept busy,
/// and ends with it. So the thread that renews leases shares no connection with anybody.
#[derive(Debug)]
pub(crate) struct PerRuntime<T>(Mutex<Vec<(Id, Arc<T>)>>);

impl<T> PerRuntime<T> {
    pub(crate) const fn new() -> Self {
        Self(Mutex::new(Vec::new()))
    }

    /// That of the runtime of the caller, made if there is none.
    pub(crate) fn here(&self, make: impl FnOnce() -> T) -> Arc<T> {
        let here = Handle::current().id();
        let mut values = self.0.lock();
        if let Some((_, value)) = values.iter().find(|(runtime, _)| *runtime == here) {
            return Arc::clone(value);
        }
        if values.len() >= RUNTIMES_MAX {
            values.remove(0);
        }
        let value = Arc::new(make());
        values.push((here, Arc::clone(&value)));
        value
    }

    /// Those of all runtimes.
    pub(crate) fn all(&self) -> Vec<Arc<T>> {
        self.0.lock().iter().map(|(_, value)| Arc::clone(value)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_current_thread().build().unwrap()
    }

    #[test]
    fn each_runtime_has_its_own_and_keeps_it() {
        let values = PerRuntime::new();
        let (first, second) = (runtime(), runtime());
        assert_eq!(*first.block_on(async { values.here(|| 1) }), 1);
        assert_eq!(*second.block_on(async { values.here(|| 2) }), 2);
        assert_eq!(*first.block_on(async { values.here(|| 3) }), 1);
        assert_eq!(values.all().len(), 2);
    }

    #[test]
    fn runtimes_that_are_long_gone_are_forgotten() {
        let values = PerRuntime::new();
        for number in 0..100 {
            runtime().block_on(async { values.here(|| number) });
        }
        assert_eq!(values.all().len(), RUNTIMES_MAX);
        assert_eq!(*values.all()[RUNTIMES_MAX - 1], 99);
    }
}
