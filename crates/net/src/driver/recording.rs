//! What an engine has recorded, on its way to the thread that writes.

use super::Driver;
use crate::record::Recorder;
use engine::{DropReason, Event, Forward, Note, Record, Time};

impl<F: Forward> Driver<F> {
    /// Recordings of the engine go there from now on; what others have begun ends where it is.
    pub fn set_recorder(&mut self, recorder: Option<Recorder>) {
        let old = std::mem::replace(&mut self.recorder, recorder);
        // Its end waits for the disk; where there is no thread it waits here.
        let _ = std::thread::Builder::new().spawn(move || drop(old));
    }

    pub(super) fn record(&mut self, file: u64, record: Record<'_>, now: Time) {
        let recorder = self.recorder.as_ref();
        let kept = match (recorder, record) {
            (Some(recorder), Record::Begin { name }) => recorder.begin(file, name),
            (Some(recorder), Record::Append { bytes }) => recorder.append(file, bytes),
            (Some(recorder), Record::End) => {
                recorder.end(file);
                true
            }
            (None, Record::End) => true,
            (None, _) => false,
        };
        if !kept {
            self.plane.shared.drop_one(DropReason::RecordOverflow);
        }
        while let Some((file, error)) = self.recorder.as_ref().and_then(Recorder::next_failure) {
            self.tell(Event::new(now, Note::RecordingFailed { file, error }));
        }
    }
}
