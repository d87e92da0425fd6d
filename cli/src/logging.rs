//! Where the library's log goes: standard error.

use env_logger::Env;

/// From now on, warnings are printed to standard error, or what `ANNULUS_LOG` asks for: `error`, `warn`, `info`, `debug`, `trace`
/// or `off`, also by module (`warn,annulus_transports::acceptor=debug`).
pub fn start() {
    // Whoever embeds this may have a logger of his own.
    let _ = env_logger::Builder::from_env(Env::new().filter_or("ANNULUS_LOG", "warn")).try_init();
}
