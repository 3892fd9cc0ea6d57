//! The road to a real API server: a relay on a loopback port that can be closed, as when a site is
//! lost, or made slow. The server behind it goes on, as it does behind a broken network.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Pieces of an answer that may be on their way at once.
const IN_FLIGHT: usize = 256;
/// Largest piece in bytes.
const PIECE: usize = 32 * 1024;

struct State {
    down: bool,
    latency: Duration,
    /// Cancelled when the gate closes; replaced when it opens.
    open: CancellationToken,
}

/// The switch of one relay; clones share it.
#[derive(Clone)]
pub struct Gate(Arc<Mutex<State>>);

impl Default for Gate {
    fn default() -> Self {
        Self(Arc::new(Mutex::new(State {
            down: false,
            latency: Duration::ZERO,
            open: CancellationToken::new(),
        })))
    }
}

impl Gate {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Closes the gate, which breaks every connection through it, or opens it.
    pub fn set_down(&self, down: bool) {
        let mut state = self.state();
        if down && !state.down {
            state.open.cancel();
        } else if !down && state.down {
            state.open = CancellationToken::new();
        }
        state.down = down;
    }

    /// Delays everything that the server says by this much.
    pub fn set_latency(&self, latency: Duration) {
        self.state().latency = latency;
    }

    fn latency(&self) -> Duration {
        self.state().latency
    }

    fn open(&self) -> CancellationToken {
        self.state().open.clone()
    }

    /// Relays connections to a port on this machine until `shutdown`.
    pub async fn relay(self, listener: TcpListener, port: u16, shutdown: CancellationToken) {
        loop {
            let accepted = tokio::select! {
                biased;
                () = shutdown.cancelled() => return,
                accepted = listener.accept() => accepted,
            };
            let Ok((client, _)) = accepted else {
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            };
            let (gate, open, shutdown) = (self.clone(), self.open(), shutdown.clone());
            tokio::spawn(async move {
                tokio::select! {
                    biased;
                    () = shutdown.cancelled() => {}
                    () = open.cancelled() => {}
                    _ = connect(&gate, client, port) => {}
                }
            });
        }
    }
}

async fn connect(gate: &Gate, client: TcpStream, port: u16) -> std::io::Result<()> {
    let server = TcpStream::connect(("127.0.0.1", port)).await?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    let (late, due) = mpsc::channel(IN_FLIGHT);
    tokio::try_join!(
        ask(from_client, to_server),
        hear(gate, from_server, late),
        tell(due, to_client),
    )?;
    Ok(())
}

/// What the client says, at once.
async fn ask(mut from: OwnedReadHalf, mut to: OwnedWriteHalf) -> std::io::Result<()> {
    tokio::io::copy(&mut from, &mut to).await?;
    to.shutdown().await
}

/// What the server says, with the moment at which the client may hear it.
async fn hear(
    gate: &Gate,
    mut from: OwnedReadHalf,
    late: mpsc::Sender<(Instant, Vec<u8>)>,
) -> std::io::Result<()> {
    loop {
        let mut piece = Vec::with_capacity(PIECE);
        let read = from.read_buf(&mut piece).await?;
        let sent = late.send((Instant::now() + gate.latency(), piece)).await;
        if read == 0 || sent.is_err() {
            return Ok(());
        }
    }
}

/// Says it to the client when it is due; an empty piece is the end.
async fn tell(
    mut due: mpsc::Receiver<(Instant, Vec<u8>)>,
    mut to: OwnedWriteHalf,
) -> std::io::Result<()> {
    while let Some((at, piece)) = due.recv().await {
        tokio::time::sleep_until(at).await;
        if piece.is_empty() {
            break;
        }
        to.write_all(&piece).await?;
    }
    to.shutdown().await
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An echo server behind a gate, and the gate's address.
    async fn echo(gate: &Gate) -> std::net::SocketAddr {
        let behind = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = behind.local_addr().unwrap().port();
        tokio::spawn(async move {
            while let Ok((stream, _)) = behind.accept().await {
                let (mut from, mut to) = stream.into_split();
                tokio::spawn(async move { tokio::io::copy(&mut from, &mut to).await });
            }
        });
        let front = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = front.local_addr().unwrap();
        tokio::spawn(gate.clone().relay(front, port, CancellationToken::new()));
        address
    }

    async fn ping(stream: &mut TcpStream) -> std::io::Result<()> {
        stream.write_all(b"ping").await?;
        let mut answer = [0; 4];
        stream.read_exact(&mut answer).await?;
        assert_eq!(&answer, b"ping");
        Ok(())
    }

    #[tokio::test]
    async fn a_closed_gate_breaks_open_connections_and_lets_no_new_one_through() {
        let gate = Gate::default();
        let address = echo(&gate).await;
        let mut old = TcpStream::connect(address).await.unwrap();
        ping(&mut old).await.unwrap();
        gate.set_down(true);
        assert!(ping(&mut old).await.is_err());
        let mut new = TcpStream::connect(address).await.unwrap();
        assert!(ping(&mut new).await.is_err());
        gate.set_down(false);
        let mut again = TcpStream::connect(address).await.unwrap();
        ping(&mut again).await.unwrap();
    }

    #[tokio::test]
    async fn a_slow_gate_is_late_and_keeps_the_order() {
        let gate = Gate::default();
        let address = echo(&gate).await;
        let mut stream = TcpStream::connect(address).await.unwrap();
        gate.set_latency(Duration::from_millis(50));
        let begun = Instant::now();
        ping(&mut stream).await.unwrap();
        assert!(begun.elapsed() >= Duration::from_millis(50));
        stream.write_all(b"abcdef").await.unwrap();
        stream.shutdown().await.unwrap();
        let mut rest = Vec::new();
        stream.read_to_end(&mut rest).await.unwrap();
        assert_eq!(rest, b"abcdef");
    }
}
