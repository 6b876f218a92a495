//! Completion of the index from the segments after a crash.

use crate::index::OpenCalls;
use crate::partition::Partition;
use crate::segment::{self, SegmentReader};
use std::fs::OpenOptions;
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::path::Path;

/// Bytes read at once.
const READ_SIZE: usize = 4 << 20;

/// The result of a restart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Recovered {
    /// Messages added to the index.
    pub(crate) messages: u64,
    /// Calls that were open when the program ended.
    pub(crate) interrupted: u64,
}

/// Restores the open calls of a partition into `index`, and adds the messages that its segments have and its index has
/// not. Returns the result, and the indexed bytes of each segment.
pub(crate) fn recover(
    folder: &Path,
    partition: &Partition,
    index: &mut OpenCalls,
) -> Result<(Recovered, Vec<(u32, u64)>), String> {
    restore(folder, partition, index)?;
    let indexed = partition.progress().map_err(|error| error.to_string())?;
    let mut recovered = Recovered::default();
    let mut progress = Vec::new();
    let numbers = segment::numbers(folder).map_err(|error| error.to_string())?;
    let last = numbers.last().copied();
    for number in numbers {
        let from = indexed.get(&number).copied();
        let from = from.unwrap_or(segment::header().len() as u64);
        let added = replay(folder, number, (from, Some(number) == last), index);
        let (messages, end) = added.map_err(|error| error.to_string())?;
        recovered.messages += messages;
        if messages > 0 {
            progress.push((number, end));
        }
    }
    recovered.interrupted = index.interrupt_open();
    Ok((recovered, progress))
}

fn restore(folder: &Path, partition: &Partition, index: &mut OpenCalls) -> Result<(), String> {
    let sql = |error: rusqlite::Error| error.to_string();
    let (slice, id) = partition.last().map_err(sql)?;
    index.slice = slice;
    index.last_id = index.last_id.max(id);
    let mut open: Option<(u32, SegmentReader)> = None;
    for one in partition.open_calls().map_err(sql)? {
        let mut last = one.last_event;
        if let Some((number, offset)) = one.last_message {
            if open.as_ref().is_none_or(|(known, _)| *known != number) {
                // A segment that retention has removed, or that cannot be read, says nothing.
                open = SegmentReader::open(folder, number)
                    .ok()
                    .map(|reader| (number, reader));
            }
            let message = open
                .as_mut()
                .and_then(|(_, reader)| reader.read(offset).ok().flatten());
            last = last.max(message.map(|message| message.micros()));
        }
        index.restore(one.call, one.slice, last);
    }
    Ok(())
}

/// Indexes the messages of a segment from the offset `from` on; the last segment is cut behind its last complete
/// message. Returns their number and the end of the last one.
fn replay(
    folder: &Path,
    number: u32,
    (from, is_last): (u64, bool),
    index: &mut OpenCalls,
) -> io::Result<(u64, u64)> {
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .open(segment::path_of(folder, number))?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(from))?;
    let (mut buffer, mut start, mut messages) = (Vec::new(), 0, 0);
    let mut offset = from;
    loop {
        while let Some((message, used)) =
            segment::message_at(buffer.get(start..).unwrap_or_default())
        {
            index.message(&message, number, offset as u32, b"");
            start += used;
            offset += used as u64;
            messages += 1;
        }
        buffer.drain(..start);
        start = 0;
        if (&mut file)
            .take(READ_SIZE as u64)
            .read_to_end(&mut buffer)?
            == 0
        {
            break;
        }
    }
    if is_last && offset < length && offset >= from {
        // The rest is the beginning of a message that was being written.
        file.set_len(offset)?;
    }
    Ok((messages, offset))
}
