//! The wire format of protobuf: field numbers with varints or byte strings.

/// One value as it is on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wire<'a> {
    /// A varint.
    Varint(u64),
    /// A length-delimited value: string, bytes, message or packed list.
    Bytes(&'a [u8]),
    /// A 32-bit or 64-bit value; no field of the built-in kinds that we read has one.
    Fixed,
}

/// Reads fields one after another.
pub struct Reader<'a> {
    bytes: &'a [u8],
}

impl<'a> Reader<'a> {
    /// A reader of one message's bytes.
    pub fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader { bytes }
    }

    /// Whether all is read.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// The next field's number and value; `None` at the end.
    pub fn next(&mut self) -> Result<Option<(u64, Wire<'a>)>, String> {
        if self.bytes.is_empty() {
            return Ok(None);
        }
        let tag = self.varint()?;
        let wire = match tag & 7 {
            0 => Wire::Varint(self.varint()?),
            1 => self.take(8).map(|_| Wire::Fixed)?,
            2 => {
                let length = self.varint()?;
                let length = usize::try_from(length).map_err(|_| truncated())?;
                Wire::Bytes(self.take(length)?)
            }
            5 => self.take(4).map(|_| Wire::Fixed)?,
            other => return Err(format!("protobuf wire type {other} is not supported")),
        };
        match tag >> 3 {
            0 => Err("protobuf field number 0 is not allowed".into()),
            number => Ok(Some((number, wire))),
        }
    }

    /// One varint.
    pub fn varint(&mut self) -> Result<u64, String> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let (first, rest) = self.bytes.split_first().ok_or_else(truncated)?;
            self.bytes = rest;
            value |= u64::from(first & 0x7f) << shift;
            if first & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err("a protobuf varint is longer than ten bytes".into())
    }

    fn take(&mut self, length: usize) -> Result<&'a [u8], String> {
        let (taken, rest) = self.bytes.split_at_checked(length).ok_or_else(truncated)?;
        self.bytes = rest;
        Ok(taken)
    }
}

fn truncated() -> String {
    "the protobuf body ends in the middle of a field".into()
}
