//! Ranks that leave in good order while others are still at work.

use std::thread;
use std::time::Duration;

use annulus::{Communicator, Config, Transport};

/// The root leaves as soon as its part is done; the other rank's first use of the link comes later.
#[test]
fn what_a_rank_sent_before_it_left_is_received() {
    for transport in [Transport::Proc, Transport::Shm, Transport::Tcp] {
        let mut config = Config::default();
        config.transport = transport;
        config.timeout = Duration::from_secs(60);
        let mut ranks = Communicator::local_with(2, &config).expect("ranks meet");
        let (late, root) = (ranks.pop().expect("rank 1"), ranks.pop().expect("rank 0"));
        let sending = thread::spawn(move || root.broadcast(&mut [7_i32, 8], 0));
        // Over TCP the two have to meet first.
        if transport != Transport::Tcp {
            sending.join().expect("no panic").expect("the link takes it");
            thread::sleep(Duration::from_millis(50));
        }
        let mut received = [0; 2];
        late.broadcast(&mut received, 0).expect("the data is here");
        assert_eq!(received, [7, 8], "over {transport:?}");
    }
}
