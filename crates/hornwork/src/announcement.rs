//! The summary at the start, on standard output: written by a thread of its own, because a full pipe or disk there must
//! stop neither the start nor the end of the program.

use std::io::Write as _;
use std::sync::OnceLock;
use std::sync::mpsc::{Sender, channel};

/// Prints a text, after those before it, without waiting. A standard output that is closed or full loses it.
pub(crate) fn announce(text: String) {
    static QUEUE: OnceLock<Option<Sender<String>>> = OnceLock::new();
    let queue = QUEUE.get_or_init(|| {
        let (sender, texts) = channel::<String>();
        let writer = std::thread::Builder::new()
            .name("announcement".to_owned())
            .spawn(move || {
                // Signals belong to the first thread.
                let _ = net::block_signals();
                for text in texts {
                    let mut out = std::io::stdout().lock();
                    if out
                        .write_all(text.as_bytes())
                        .and_then(|()| out.flush())
                        .is_err()
                    {
                        return;
                    }
                }
            });
        writer.is_ok().then_some(sender)
    });
    if let Some(queue) = queue {
        // The thread has ended after an error.
        let _ = queue.send(text);
    }
}
