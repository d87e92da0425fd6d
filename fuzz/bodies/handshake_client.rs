//! A client against a server that says anything.

use annulus_transports::handshake::{ClientHandshake, Hello, ServerHandshake};
use annulus_transports::secret::Secret;

/// The first byte tells how many bytes come at a time, the second what the others are:
///
/// * even: what the server sends. It cannot know the secret, so the client must not believe it;
/// * odd: a mask over what an honest server sends (short masks go on with zeros). The client must
///   believe exactly the server whose bytes the mask leaves alone.
pub(crate) fn run(data: &[u8]) {
    let [piece, mode, data @ ..] = data else { return };
    let piece = usize::from(*piece).max(1);
    let secret = Secret::from_bytes([7; 32]);
    let hello = Hello { rank: 1, target: 2, purpose: 3, index: 4, tag: 5 };
    let mut client = ClientHandshake::new(&secret, hello, [8; 32]);
    if mode % 2 == 0 {
        let opening = client.output().len();
        client.sent(opening);
        deliver(&mut client, data, piece);
        assert!(!client.is_accepted());
        // The hello is for a server that has proved itself.
        assert!(client.output().is_empty());
    } else {
        let mut server = ServerHandshake::new([9; 32]);
        let mut mask = data.iter().copied().chain(std::iter::repeat(0));
        let mut touched = false;
        while !client.output().is_empty() {
            let sent = client.output().to_vec();
            client.sent(sent.len());
            server.receive(&sent, |_| Some(secret.clone())).expect("the client is honest");
            server.accept();
            let answer: Vec<u8> = server
                .output()
                .iter()
                .zip(&mut mask)
                .map(|(byte, mask)| {
                    touched |= mask != 0;
                    byte ^ mask
                })
                .collect();
            server.sent(answer.len());
            deliver(&mut client, &answer, piece);
        }
        assert_eq!(client.is_accepted(), !touched);
    }
}

/// Hands `input` to the client in pieces, and checks what it promises on the way.
fn deliver(client: &mut ClientHandshake, input: &[u8], piece: usize) {
    for mut bytes in input.chunks(piece) {
        while !bytes.is_empty() && client.wants() > 0 {
            assert!(client.wants() <= 64);
            match client.receive(bytes) {
                Ok(consumed) => {
                    assert!(0 < consumed && consumed <= bytes.len());
                    bytes = &bytes[consumed..];
                }
                Err(_) => assert_eq!(client.wants(), 0),
            }
        }
    }
}
