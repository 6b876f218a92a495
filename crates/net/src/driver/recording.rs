//! Passes recordings of an engine to the writer thread.

use super::Driver;
use crate::record::Recorder;
use crate::tcp::Pending;
use engine::{DropReason, Event, EventKind, Forward, RecordingCommand, Time};

impl<F: Forward> Driver<F> {
    /// Replaces the recorder. Recordings that were started before end with their present length: the engine has to
    /// begin others.
    pub fn set_recorder(&mut self, recorder: Option<Recorder>) {
        if let Some(mut old) = std::mem::replace(&mut self.recorder, recorder) {
            // Waiting for the disk would delay calls.
            old.close();
            self.ended_recorders.push(old);
        }
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
        if kept {
            return;
        }
        self.plane.shared.drop_one(DropReason::RecordingOverflow);
        if let RecordingCommand::Create { name, .. } = record {
            let error = match self.recorder {
                Some(_) => "not a plain file name, or the writer thread has ended",
                None => "there is no folder for recordings",
            };
            self.recording_failed(file, name.to_owned(), error.to_owned(), self.clock.now());
        }
    }

    /// Logs a failed recording, and tells the engine, so that it ends it.
    fn recording_failed(&mut self, number: u64, file: String, error: String, now: Time) {
        self.push_event(Event::new(now, EventKind::RecordingFailed { file, error }));
        self.streams
            .pending
            .push_back(Pending::RecordingFailed { file: number });
    }

    /// Reports failed recordings, and data that were lost before the queue had space again.
    pub(super) fn report_recordings(&mut self, now: Time) {
        if let Some(recorder) = self.recorder.take() {
            if recorder.has_room() {
                self.report_lost(&recorder, now);
            }
            self.report_failures(&recorder, now);
            self.recorder = Some(recorder);
        }
        if self.ended_recorders.iter().any(Recorder::has_ended) {
            let recorders = std::mem::take(&mut self.ended_recorders).into_iter();
            let (ended, writing) = recorders.partition(Recorder::has_ended);
            self.ended_recorders = writing;
            self.report_ended(ended, now);
        }
    }

    fn report_lost(&mut self, recorder: &Recorder, now: Time) {
        let lost = recorder.take_lost();
        if lost > 0 {
            self.push_event(Event::new(now, EventKind::RecordingLost { bytes: lost }));
        }
    }

    fn report_failures(&mut self, recorder: &Recorder, now: Time) {
        while let Some(failed) = recorder.next_failure() {
            self.recording_failed(failed.number, failed.file, failed.error, now);
        }
    }

    fn report_ended(&mut self, recorders: Vec<Recorder>, now: Time) {
        for recorder in recorders {
            self.report_lost(&recorder, now);
            self.report_failures(&recorder, now);
        }
    }

    /// Ends all recordings at the end of the program: waits for the disk for at most two seconds for each folder, and
    /// reports failures.
    pub fn finish_recordings(&mut self) {
        let mut recorders = std::mem::take(&mut self.ended_recorders);
        recorders.extend(self.recorder.take());
        for recorder in &mut recorders {
            recorder.finish();
        }
        self.report_ended(recorders, self.clock.now());
    }
}
