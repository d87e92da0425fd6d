//! The acceptor that a whole process shares; alone in its process so that it can see the last one go.

use std::net::{Ipv4Addr, TcpStream};

use annulus_transports::acceptor::Acceptor;

#[test]
fn shared_acceptor_lives_as_long_as_its_users() {
    let first = Acceptor::shared().unwrap();
    let second = Acceptor::shared().unwrap();
    let port = first.tcp_address().port();
    assert_eq!(second.tcp_address().port(), port);
    drop(first);
    TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
    drop(second);
    TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap_err();
    let again = Acceptor::shared().unwrap();
    TcpStream::connect((Ipv4Addr::LOCALHOST, again.tcp_address().port())).unwrap();
}
