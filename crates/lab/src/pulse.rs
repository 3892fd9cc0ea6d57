//! A bell that rings for everybody who waits, in the order in which they came. `tokio::sync::watch`
//! wakes its receivers in random order, and one seed must give one history.

use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::Notify;

/// The bell.
#[derive(Default)]
pub(crate) struct Pulse {
    count: AtomicU64,
    bell: Notify,
}

impl Pulse {
    /// Rings.
    pub(crate) fn ring(&self) {
        self.count.fetch_add(1, Ordering::SeqCst);
        self.bell.notify_waiters();
    }

    /// How often it has rung.
    pub(crate) fn count(&self) -> u64 {
        self.count.load(Ordering::SeqCst)
    }

    /// Waits until it has rung more often than this.
    pub(crate) async fn beyond(&self, heard: u64) {
        Listener { pulse: self, heard }.next().await;
    }

    /// Hears every ring from now on.
    pub(crate) fn listen(&self) -> Listener<'_> {
        Listener {
            pulse: self,
            heard: self.count(),
        }
    }
}

/// One who listens.
pub(crate) struct Listener<'a> {
    pulse: &'a Pulse,
    heard: u64,
}

impl Listener<'_> {
    /// Waits for a ring since the last one heard.
    pub(crate) async fn next(&mut self) {
        let rung = self.pulse.bell.notified();
        let now = self.pulse.count.load(Ordering::SeqCst);
        if now == self.heard {
            rung.await;
        }
        self.heard = self.pulse.count.load(Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn who_waits_is_woken_in_the_order_of_coming() {
        let pulse = Arc::new(Pulse::default());
        let order = Arc::new(std::sync::Mutex::new(Vec::new()));
        let mut tasks = Vec::new();
        for n in 0..20 {
            let (pulse, order) = (pulse.clone(), order.clone());
            tasks.push(tokio::spawn(async move {
                pulse.listen().next().await;
                order.lock().unwrap().push(n);
            }));
        }
        tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        pulse.ring();
        for task in tasks {
            task.await.unwrap();
        }
        assert_eq!(*order.lock().unwrap(), (0..20).collect::<Vec<_>>());
    }

    #[tokio::test(start_paused = true)]
    async fn a_ring_between_two_looks_is_not_missed() {
        let pulse = Pulse::default();
        let mut listener = pulse.listen();
        pulse.ring();
        listener.next().await;
    }
}
