//! Which pieces of an HTTP/2 connection carry messages.

/// The bytes that open a client's connection.
const PREFACE: usize = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".len();
const DATA: u8 = 0;
const HEADERS: u8 = 1;

/// Reads one direction of a connection, piece by piece.
#[derive(Debug)]
pub(super) struct Frames {
    /// Bytes to skip: of the preface, or of a frame already classified.
    skip: usize,
    /// The head of the next frame, as far as it has arrived.
    head: Vec<u8>,
    server: bool,
}

impl Frames {
    pub(super) fn of_client() -> Self {
        Self { skip: PREFACE, head: Vec::new(), server: false }
    }

    pub(super) fn of_server() -> Self {
        Self { skip: 0, head: Vec::new(), server: true }
    }

    /// Whether a message, or the end of a reply, begins in this piece. A client's message is its
    /// data: no server acts on the head of a request alone.
    pub(super) fn carry_a_message(&mut self, mut piece: &[u8]) -> bool {
        let mut carries = false;
        loop {
            let skipped = self.skip.min(piece.len());
            self.skip -= skipped;
            piece = &piece[skipped..];
            if piece.is_empty() {
                return carries;
            }
            let missing = 9 - self.head.len();
            let taken = missing.min(piece.len());
            self.head.extend_from_slice(&piece[..taken]);
            piece = &piece[taken..];
            if let [a, b, c, kind, ..] = self.head[..]
                && self.head.len() == 9
            {
                self.skip = usize::from(a) << 16 | usize::from(b) << 8 | usize::from(c);
                carries |= (kind == DATA && self.skip > 0) || (kind == HEADERS && self.server);
                self.head.clear();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, length: u8) -> Vec<u8> {
        let mut frame = vec![0, 0, length, kind, 0, 0, 0, 0, 1];
        frame.extend(vec![0xff; usize::from(length)]);
        frame
    }

    #[test]
    fn pings_and_settings_are_no_messages() {
        let mut client = Frames::of_client();
        let mut piece = vec![b'x'; PREFACE];
        piece.extend(frame(4, 18));
        assert!(!client.carry_a_message(&piece));
        assert!(!client.carry_a_message(&frame(6, 8)));
        assert!(!client.carry_a_message(&frame(HEADERS, 30)), "a head alone");
        assert!(client.carry_a_message(&frame(DATA, 5)));
        assert!(!client.carry_a_message(&frame(DATA, 0)), "the end of a stream");
        let mut server = Frames::of_server();
        assert!(!server.carry_a_message(&frame(8, 4)));
        assert!(server.carry_a_message(&frame(HEADERS, 3)));
    }

    #[test]
    fn frames_may_be_torn() {
        let mut bytes = frame(6, 8);
        bytes.extend(frame(DATA, 200));
        bytes.extend(frame(6, 8));
        for cut in 1..bytes.len() {
            let mut server = Frames::of_server();
            let first = server.carry_a_message(&bytes[..cut]);
            let second = server.carry_a_message(&bytes[cut..]);
            assert!(first != second, "one message, torn at {cut}");
        }
    }
}
