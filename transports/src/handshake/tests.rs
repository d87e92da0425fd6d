use super::*;

const HELLO: Hello = Hello { rank: 3, target: 1, purpose: 2, index: 70_000, tag: u32::MAX };

fn secret() -> Secret {
    Secret::from_bytes([7; 32])
}

fn client() -> ClientHandshake {
    ClientHandshake::new(&secret(), HELLO, [1; 32])
}

/// A server that holds [`secret`] and no other.
fn feed(server: &mut ServerHandshake, bytes: &[u8]) -> Result<usize, HandshakeError> {
    server.receive(bytes, |key| (key == secret().key_id()).then(secret))
}

fn client_output(client: &mut ClientHandshake) -> Vec<u8> {
    let bytes = client.output().to_vec();
    client.sent(bytes.len());
    bytes
}

fn server_output(server: &mut ServerHandshake) -> Vec<u8> {
    let bytes = server.output().to_vec();
    server.sent(bytes.len());
    bytes
}

/// What an honest client with the nonce of [`client`] sends to a server with `nonce`.
fn recording(nonce: Nonce) -> (Vec<u8>, Vec<u8>) {
    let (mut client, mut server) = (client(), ServerHandshake::new(nonce));
    let opening = client_output(&mut client);
    feed(&mut server, &opening).unwrap();
    client.receive(&server_output(&mut server)).unwrap();
    (opening, client_output(&mut client))
}

#[test]
fn honest_ends_meet_however_the_bytes_are_cut() {
    for piece in [1, 2, 7, 49, 1000] {
        let (mut client, mut server) = (client(), ServerHandshake::new([2; 32]));
        let mut rounds = 0;
        while !client.is_accepted() {
            for bytes in client_output(&mut client).chunks(piece) {
                assert_eq!(feed(&mut server, bytes).unwrap(), bytes.len());
            }
            if let Some((key, hello)) = server.proved() {
                assert_eq!((key, hello), (secret().key_id(), HELLO));
                server.accept();
            }
            for bytes in server_output(&mut server).chunks(piece) {
                assert_eq!(client.receive(bytes).unwrap(), bytes.len());
            }
            rounds += 1;
        }
        assert_eq!(rounds, 2);
        assert_eq!((client.wants(), server.wants()), (0, 0));
    }
}

#[test]
fn bytes_after_the_handshake_are_left_alone() {
    let (mut client, mut server) = (client(), ServerHandshake::new([2; 32]));
    feed(&mut server, &client_output(&mut client)).unwrap();
    client.receive(&server_output(&mut server)).unwrap();
    let mut proof = client_output(&mut client);
    let length = proof.len();
    proof.extend_from_slice(b"payload");
    assert_eq!(feed(&mut server, &proof).unwrap(), length);
    server.accept();
    let mut verdict = server_output(&mut server);
    verdict.extend_from_slice(b"payload");
    assert_eq!(client.receive(&verdict).unwrap(), 1);
    assert!(client.is_accepted());
}

#[test]
fn replayed_client_is_not_believed() {
    let (opening, proof) = recording([2; 32]);
    let mut again = ServerHandshake::new([2; 32]);
    feed(&mut again, &opening).unwrap();
    feed(&mut again, &proof).unwrap();
    assert!(again.proved().is_some(), "the recording is good for the same nonce");

    let mut fresh = ServerHandshake::new([3; 32]);
    feed(&mut fresh, &opening).unwrap();
    assert_eq!(feed(&mut fresh, &proof), Err(HandshakeError::WrongSecret));
    assert_eq!(fresh.proved(), None);
}

#[test]
fn replayed_server_is_not_believed() {
    let (mut first, mut server) = (client(), ServerHandshake::new([2; 32]));
    feed(&mut server, &client_output(&mut first)).unwrap();
    let reply = server_output(&mut server);
    let mut second = ClientHandshake::new(&secret(), HELLO, [4; 32]);
    client_output(&mut second);
    assert_eq!(second.receive(&reply), Err(HandshakeError::WrongSecret));
    assert!(second.output().is_empty(), "the hello is kept from a server that proved nothing");
}

#[test]
fn reflected_bytes_prove_nothing() {
    // A client that gets its own opening back.
    let mut mirrored = client();
    let opening = client_output(&mut mirrored);
    assert_eq!(mirrored.receive(&opening), Err(HandshakeError::NotAnnulus));

    // A stranger that answers the server's challenge with the server's own MAC.
    let mut server = ServerHandshake::new([2; 32]);
    feed(&mut server, &opening).unwrap();
    let reply = server_output(&mut server);
    let mut proof = HELLO.to_bytes().to_vec();
    proof.extend_from_slice(&reply[43..75]);
    assert_eq!(feed(&mut server, &proof), Err(HandshakeError::WrongSecret));

    // A stranger that has a second server of the job answer for it.
    let mut other = ServerHandshake::new([2; 32]);
    feed(&mut other, &opening).unwrap();
    assert_eq!(feed(&mut other, &reply[26..75]), Err(HandshakeError::WrongSecret));
}

#[test]
fn same_key_id_with_another_secret_is_not_enough() {
    let mut client = client();
    let mut server = ServerHandshake::new([2; 32]);
    let other = Secret::from_bytes([8; 32]);
    server.receive(&client_output(&mut client), |_| Some(other.clone())).unwrap();
    assert_eq!(client.receive(&server_output(&mut server)), Err(HandshakeError::WrongSecret));
}

#[test]
fn cut_off_handshakes_prove_nothing() {
    let (opening, proof) = recording([2; 32]);
    let whole = [opening, proof].concat();
    for length in 0..whole.len() {
        let mut server = ServerHandshake::new([2; 32]);
        feed(&mut server, &whole[..length]).unwrap();
        assert_eq!(server.proved(), None);
        assert!(server.wants() > 0);
    }
}

#[test]
fn other_programs_are_known_by_their_first_wrong_byte() {
    for bytes in [&b"GET / HTTP/1.1\r\n"[..], &[0x16, 3, 1], &[0], &[0xff; 100], b"\xa2annuls\n"] {
        let mut server = ServerHandshake::new([2; 32]);
        assert_eq!(feed(&mut server, bytes), Err(HandshakeError::NotAnnulus));
        assert!(server.output().is_empty(), "a stranger gets no answer");
        assert_eq!(server.wants(), 0);
    }
}

#[test]
fn versions_that_differ_are_both_named() {
    let mut server = ServerHandshake::new([2; 32]);
    let mut opening = client_output(&mut client());
    opening[8..10].copy_from_slice(&513_u16.to_le_bytes());
    let error = feed(&mut server, &opening).unwrap_err();
    assert_eq!(error, HandshakeError::Version { ours: PROTOCOL_VERSION, theirs: 513 });

    // The other side of the same meeting: the reply of a server of version 513.
    let mut reply = server_output(&mut server);
    assert_eq!(reply.len(), 11);
    reply[8..10].copy_from_slice(&513_u16.to_le_bytes());
    let mut client = client();
    client_output(&mut client);
    let error = client.receive(&reply).unwrap_err();
    assert_eq!(error, HandshakeError::Version { ours: PROTOCOL_VERSION, theirs: 513 });
    let text = error.to_string();
    assert!(text.contains("513") && text.contains(&format!("version {PROTOCOL_VERSION}")));
}

#[test]
fn client_learns_why_it_cannot_come_in_yet() {
    let outcome = |prepare: fn(&mut ServerHandshake, &[u8])| {
        let (mut client, mut server) = (client(), ServerHandshake::new([2; 32]));
        loop {
            prepare(&mut server, &client_output(&mut client));
            if let Err(error) = client.receive(&server_output(&mut server)) {
                return error;
            }
        }
    };
    let unknown = outcome(|server, bytes| {
        let error = server.receive(bytes, |_| None).unwrap_err();
        assert_eq!(error, HandshakeError::UnknownKey(secret().key_id()));
    });
    assert_eq!(unknown, HandshakeError::NotRegistered);
    let absent = outcome(|server, bytes| {
        feed(server, bytes).unwrap();
        server.refuse();
    });
    assert_eq!(absent, HandshakeError::NotRegistered);
    let busy = outcome(|server, _| server.dismiss());
    assert_eq!(busy, HandshakeError::Busy);
}

#[test]
fn verdict_before_the_proof_changes_nothing() {
    let mut server = ServerHandshake::new([2; 32]);
    server.accept();
    server.refuse();
    assert!(server.output().is_empty());
    assert_eq!(server.wants(), 10);
}
