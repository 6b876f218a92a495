//! Rows for COPY in binary format (PostgreSQL, "COPY", "Binary Format").

use super::connection::DatabaseError;
use bytes::Bytes;
use futures_util::SinkExt as _;
use std::ops::Range;
use std::pin::pin;
use tokio_postgres::Client;

/// Bytes that are sent at once.
const PART: usize = 256 << 10;

/// Rows in the making. The fields of a row follow each other in the order of the columns.
#[derive(Debug)]
pub(super) struct CopyRows {
    bytes: Vec<u8>,
    columns: i16,
    /// Where each row begins.
    starts: Vec<usize>,
}

impl CopyRows {
    /// No rows yet; each will have this number of columns.
    pub(super) fn new(columns: i16) -> CopyRows {
        CopyRows {
            bytes: Vec::new(),
            columns,
            starts: Vec::new(),
        }
    }

    /// Number of rows.
    pub(super) fn len(&self) -> usize {
        self.starts.len()
    }

    /// Begins a row.
    pub(super) fn row(&mut self) -> &mut CopyRows {
        self.starts.push(self.bytes.len());
        self.bytes.extend(self.columns.to_be_bytes());
        self
    }

    /// A bigint.
    pub(super) fn int8(&mut self, value: i64) -> &mut CopyRows {
        self.field(&value.to_be_bytes())
    }

    /// A smallint.
    pub(super) fn int2(&mut self, value: i16) -> &mut CopyRows {
        self.field(&value.to_be_bytes())
    }

    /// A text or bytea.
    pub(super) fn field(&mut self, value: &[u8]) -> &mut CopyRows {
        self.bytes.extend((value.len() as i32).to_be_bytes());
        self.bytes.extend_from_slice(value);
        self
    }

    /// NULL.
    pub(super) fn null(&mut self) -> &mut CopyRows {
        self.bytes.extend((-1_i32).to_be_bytes());
        self
    }

    /// The bytes of these rows.
    fn bytes_of(&self, rows: &Range<usize>) -> &[u8] {
        let end = self.bytes.len();
        let start_of = |row: usize| self.starts.get(row).copied().unwrap_or(end);
        let bytes = self.bytes.get(start_of(rows.start)..start_of(rows.end));
        bytes.unwrap_or_default()
    }

    /// Sends these rows with this statement, `COPY ... FROM STDIN (FORMAT binary)`; none if there are none.
    pub(super) async fn send(
        &self,
        client: &Client,
        copy: &str,
        rows: Range<usize>,
    ) -> Result<(), DatabaseError> {
        if rows.is_empty() {
            return Ok(());
        }
        let mut sink = pin!(client.copy_in::<_, Bytes>(copy).await?);
        // Signature, flags and length of the extension of the header.
        sink.send(Bytes::from_static(b"PGCOPY\n\xff\r\n\0\0\0\0\0\0\0\0\0"))
            .await?;
        for part in self.bytes_of(&rows).chunks(PART) {
            sink.send(Bytes::copy_from_slice(part)).await?;
        }
        // The end: instead of a number of columns.
        sink.send(Bytes::from_static(&[0xff, 0xff])).await?;
        let written = sink.finish().await?;
        match usize::try_from(written) == Ok(rows.len()) {
            true => Ok(()),
            false => Err(DatabaseError::Unusable(format!(
                "{written} of {} rows were stored",
                rows.len()
            ))),
        }
    }
}
