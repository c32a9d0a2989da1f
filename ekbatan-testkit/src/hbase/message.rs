//! Messages of protocol buffers, written and read field by field.

/// A field with bytes or a message.
pub(super) fn bytes(field: usize, value: impl AsRef<[u8]>) -> Vec<u8> {
    let value = value.as_ref();
    [number(field << 3 | 2), number(value.len()), value.to_vec()].concat()
}

/// A field with a number.
pub(super) fn count(field: usize, value: usize) -> Vec<u8> {
    [number(field << 3), number(value)].concat()
}

/// A message behind its length.
pub(super) fn with_length(message: &[u8]) -> Vec<u8> {
    [&number(message.len())[..], message].concat()
}

/// Groups of seven bits, the lowest first.
fn number(mut value: usize) -> Vec<u8> {
    let mut groups = Vec::new();
    while value > 127 {
        groups.push((value & 127) as u8 | 128);
        value >>= 7;
    }
    groups.push(value as u8);
    groups
}

/// A message behind its length, and what follows it.
pub(super) fn delimited(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = read_number(bytes)?;
    rest.split_at_checked(length)
}

/// The value of a field.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Value<'m> {
    Bytes(&'m [u8]),
    Number(usize),
}

/// The values of a field, in their order.
pub(super) fn fields(mut message: &[u8], wanted: usize) -> Vec<Value<'_>> {
    let mut found = Vec::new();
    while let Some((tag, rest)) = read_number(message) {
        let (value, rest) = match tag & 7 {
            0 => match read_number(rest) {
                Some((value, rest)) => (Value::Number(value), rest),
                None => break,
            },
            2 => match delimited(rest) {
                Some((value, rest)) => (Value::Bytes(value), rest),
                None => break,
            },
            _ => break,
        };
        if tag >> 3 == wanted {
            found.push(value);
        }
        message = rest;
    }
    found
}

/// The bytes of a field; empty if it is not there.
pub(super) fn field(message: &[u8], wanted: usize) -> &[u8] {
    let value = fields(message, wanted).into_iter().find_map(|value| match value {
        Value::Bytes(bytes) => Some(bytes),
        Value::Number(_) => None,
    });
    value.unwrap_or_default()
}

fn read_number(bytes: &[u8]) -> Option<(usize, &[u8])> {
    let mut value = 0;
    for (n, byte) in bytes.iter().take(10).enumerate() {
        value |= usize::from(byte & 127) << (7 * n);
        if *byte < 128 {
            return Some((value, &bytes[n + 1..]));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_read_as_they_were_written() {
        let message = [count(1, 300), bytes(2, "two"), bytes(3, [7; 200]), bytes(2, "")].concat();
        assert_eq!(fields(&message, 1), [Value::Number(300)]);
        assert_eq!(fields(&message, 2), [Value::Bytes(b"two"), Value::Bytes(b"")]);
        assert_eq!(field(&message, 3), [7; 200]);
        assert_eq!(fields(&message, 4), []);
        assert_eq!(fields(b"HTTP", 1), []);
        // A number of 64 bits has ten groups.
        let long = [count(1, usize::MAX), bytes(2, "behind")].concat();
        assert_eq!(fields(&long, 1), [Value::Number(usize::MAX)]);
        assert_eq!(field(&long, 2), b"behind");
        let (first, rest) = (with_length(&message), b"rest");
        let both = [&first[..], rest].concat();
        assert_eq!(delimited(&both), Some((&message[..], &rest[..])));
        assert_eq!(delimited(&[2, 5]), None);
    }
}
