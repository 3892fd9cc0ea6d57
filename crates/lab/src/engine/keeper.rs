//! Starts child processes from a thread that lives as long as the process.
//!
//! A child that asked for the death of its parent (`setpriv --pdeathsig`) gets it when the thread that
//! started it ends, and a test's thread ends long before the tests do.

use std::io;
use std::process::{Child, Command};
use std::sync::LazyLock;
use std::sync::mpsc::{Sender, channel};

type Wish = (Command, Sender<io::Result<Child>>);

#[expect(
    clippy::disallowed_methods,
    reason = "real processes live in the machine's time, as does who starts them"
)]
static KEEPER: LazyLock<Sender<Wish>> = LazyLock::new(|| {
    let (wish, wishes) = channel::<Wish>();
    std::thread::spawn(move || {
        for (mut command, tell) in wishes {
            let _ = tell.send(command.spawn());
        }
    });
    wish
});

/// Starts a child that outlives the calling thread.
pub fn spawn(command: Command) -> io::Result<Child> {
    let (tell, told) = channel();
    let gone = |_| io::Error::other("the thread that starts processes is gone");
    KEEPER.send((command, tell)).map_err(|_| gone(()))?;
    told.recv().map_err(|_| gone(()))?
}
