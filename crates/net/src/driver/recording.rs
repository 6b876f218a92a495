//! Passes recordings of an engine to the writer thread.

use super::Driver;
use crate::record::Recorder;
use engine::{DropReason, Event, EventKind, Forward, RecordingCommand, Time};

impl<F: Forward> Driver<F> {
    /// Replaces the recorder. Recordings that were started before end with their present length.
    pub fn set_recorder(&mut self, recorder: Option<Recorder>) {
        let old = std::mem::replace(&mut self.recorder, recorder);
        // Dropping a recorder waits for the disk, so a thread does it; without a thread it is dropped here.
        let _ = std::thread::Builder::new().spawn(move || drop(old));
    }

    pub(super) fn record(&mut self, file: u64, record: RecordingCommand<'_>) {
        let recorder = self.recorder.as_ref();
        let kept = match (recorder, record) {
            (Some(recorder), RecordingCommand::Create { name, header }) => {
                recorder.begin(file, name, header)
            }
            (Some(recorder), RecordingCommand::Append { bytes }) => recorder.append(file, bytes),
            (Some(recorder), RecordingCommand::Close) => {
                recorder.end(file);
                true
            }
            (None, RecordingCommand::Close) => true,
            (None, _) => false,
        };
        if !kept {
            self.plane.shared.drop_one(DropReason::RecordingOverflow);
        }
    }

    /// Reports failed recordings, and data that were lost before the queue had space again.
    pub(super) fn report_recordings(&mut self, now: Time) {
        let Some(recorder) = &self.recorder else {
            return;
        };
        let lost = if recorder.has_room() {
            recorder.take_lost()
        } else {
            0
        };
        if lost > 0 {
            self.push_event(Event::new(now, EventKind::RecordingLost { bytes: lost }));
        }
        while let Some((file, error)) = self.recorder.as_ref().and_then(Recorder::next_failure) {
            self.push_event(Event::new(now, EventKind::RecordingFailed { file, error }));
        }
    }

    /// Ends all recordings at the end of the program: waits for the disk for at most two seconds, and reports failures.
    pub fn finish_recordings(&mut self) {
        let Some(mut recorder) = self.recorder.take() else {
            return;
        };
        recorder.finish();
        let now = self.clock.now();
        let lost = recorder.take_lost();
        if lost > 0 {
            self.push_event(Event::new(now, EventKind::RecordingLost { bytes: lost }));
        }
        while let Some((file, error)) = recorder.next_failure() {
            self.push_event(Event::new(now, EventKind::RecordingFailed { file, error }));
        }
    }
}
