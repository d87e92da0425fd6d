//! A server against a client that says anything.

use annulus_transports::handshake::{ClientHandshake, Hello, ServerHandshake};
use annulus_transports::secret::{KeyId, Secret};

/// The first byte tells how many bytes come at a time, the second what the others are:
///
/// * even: what the client sends. It cannot know the secret, so the server must not believe it;
/// * odd: a mask over what an honest client sends (short masks go on with zeros). The server must
///   believe exactly the client whose bytes the mask leaves alone.
pub(crate) fn run(data: &[u8]) {
    let [piece, mode, data @ ..] = data else { return };
    let piece = usize::from(*piece).max(1);
    let secret = Secret::from_bytes([7; 32]);
    let known = secret.key_id();
    let secret_of = |key: KeyId| (key == known).then(|| secret.clone());
    let mut server = ServerHandshake::new([9; 32]);
    if mode % 2 == 0 {
        deliver(&mut server, data, piece, &secret_of);
        assert_eq!(server.proved(), None);
    } else {
        let hello = Hello { rank: 1, target: 2, purpose: 3, index: 4, tag: 5 };
        let mut client = ClientHandshake::new(&secret, hello, [8; 32]);
        let mut mask = data.iter().copied().chain(std::iter::repeat(0));
        let mut touched = false;
        while !client.output().is_empty() {
            let sent: Vec<u8> = client
                .output()
                .iter()
                .zip(&mut mask)
                .map(|(byte, mask)| {
                    touched |= mask != 0;
                    byte ^ mask
                })
                .collect();
            client.sent(sent.len());
            deliver(&mut server, &sent, piece, &secret_of);
            let answer = server.output().to_vec();
            server.sent(answer.len());
            let _ = client.receive(&answer);
        }
        let expected = (!touched).then_some((known, hello));
        assert_eq!(server.proved(), expected);
    }
}

/// Hands `input` to the server in pieces, and checks what it promises on the way.
fn deliver(
    server: &mut ServerHandshake,
    input: &[u8],
    piece: usize,
    secret_of: &impl Fn(KeyId) -> Option<Secret>,
) {
    for mut bytes in input.chunks(piece) {
        while !bytes.is_empty() && server.wants() > 0 {
            assert!(server.wants() <= 64);
            match server.receive(bytes, secret_of) {
                Ok(consumed) => {
                    assert!(0 < consumed && consumed <= bytes.len());
                    bytes = &bytes[consumed..];
                }
                Err(_) => assert_eq!(server.wants(), 0),
            }
            assert!(server.output().len() <= 75);
        }
    }
}
