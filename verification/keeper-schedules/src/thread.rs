//! As in `lock-core`.

#[allow(clippy::unnecessary_wraps, reason = "as in `lock-core`")]
pub(crate) fn start(_: &str, run: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
    drop(shuttle::thread::spawn(run));
    Ok(())
}
