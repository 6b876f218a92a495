//! Export of messages as pcapng.

use crate::found::LoadedMessage;
use crate::segment;

/// A pcapng file with these messages, and a comment if it is not empty.
pub fn export(messages: &[LoadedMessage], comment: &str) -> Vec<u8> {
    let mut file = segment::header_with(comment);
    for message in messages {
        segment::append(&mut file, &message.stored());
    }
    file
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comment_is_an_option_of_the_first_block() {
        let plain = export(&[], "");
        assert_eq!(plain, segment::header());
        let file = export(&[], "cut");
        // Option 1 with its length, padded to four octets, and the end of options.
        let option = [1, 0, 3, 0, b'c', b'u', b't', 0, 0, 0, 0, 0];
        assert_eq!(file[24..36], option);
        let length = (28 + option.len() as u32).to_le_bytes();
        assert_eq!((&file[4..8], &file[36..40]), (&length[..], &length[..]));
        // The interfaces follow as in other files.
        assert_eq!(file[40..], plain[28..]);
    }
}
