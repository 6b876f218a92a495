//! Export of messages as pcapng.

use crate::found::LoadedMessage;
use crate::segment;

/// A pcapng file with these messages.
pub fn export(messages: &[LoadedMessage]) -> Vec<u8> {
    let mut file = segment::header();
    for message in messages {
        segment::append(&mut file, &message.stored());
    }
    file
}
