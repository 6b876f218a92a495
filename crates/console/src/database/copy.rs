//! Rows for COPY in binary format (PostgreSQL, "COPY", "Binary Format").

use super::connection::DatabaseError;
use bytes::Bytes;
use futures_util::SinkExt as _;
use std::pin::pin;
use tokio_postgres::Client;

/// Bytes that are sent at once.
const PART: usize = 256 << 10;

/// Rows in the making. The fields of a row follow each other in the order of the columns.
#[derive(Debug)]
pub(super) struct CopyRows {
    bytes: Vec<u8>,
    columns: i16,
    rows: usize,
}

impl CopyRows {
    /// No rows yet; each will have this number of columns.
    pub(super) fn new(columns: i16) -> CopyRows {
        let mut bytes = b"PGCOPY\n\xff\r\n\0".to_vec();
        // Flags, and the length of the extension of the header.
        bytes.extend([0; 8]);
        CopyRows {
            bytes,
            columns,
            rows: 0,
        }
    }

    /// Begins a row.
    pub(super) fn row(&mut self) -> &mut CopyRows {
        self.bytes.extend(self.columns.to_be_bytes());
        self.rows += 1;
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

    /// Sends all rows with this statement, `COPY ... FROM STDIN (FORMAT binary)`; none if there are none.
    pub(super) async fn send(mut self, client: &Client, copy: &str) -> Result<(), DatabaseError> {
        if self.rows == 0 {
            return Ok(());
        }
        self.bytes.extend((-1_i16).to_be_bytes());
        let mut rest = Bytes::from(self.bytes);
        let mut sink = pin!(client.copy_in::<_, Bytes>(copy).await?);
        while !rest.is_empty() {
            let part = rest.split_to(PART.min(rest.len()));
            sink.send(part).await?;
        }
        let written = sink.finish().await?;
        match usize::try_from(written) == Ok(self.rows) {
            true => Ok(()),
            false => Err(DatabaseError::Unusable(format!(
                "{written} of {} rows were stored",
                self.rows
            ))),
        }
    }
}
