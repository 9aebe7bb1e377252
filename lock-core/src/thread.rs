//! Threads of our own, which end with no runtime.

use crate::mutex::Mutex;

/// What each process makes for itself, since it has a thread behind it: a forked process has none of its parent's.
pub(crate) struct PerProcess<T>(Mutex<(u32, T)>);

impl<T: Default> PerProcess<T> {
    /// `nothing` is the default, which a constant cannot ask for.
    pub(crate) const fn new(nothing: T) -> Self {
        // No process has the id 0.
        Self(Mutex::new((0, nothing)))
    }

    pub(crate) fn with<R>(&self, act: impl FnOnce(&mut T) -> R) -> R {
        let process = std::process::id();
        let mut own = self.0.lock();
        if own.0 != process {
            *own = (process, T::default());
        }
        act(&mut own.1)
    }
}

pub(crate) fn start(name: &str, run: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
    std::thread::Builder::new().name(name.to_owned()).spawn(run).map(drop)
}
