//! Plays a program through, event by event.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use crate::topology::{Cost, Host, PieceCost, Topology};

use super::program::{NONE, Program, Run, Work};
use super::{Detail, Prediction, SimulationError, Workload};

/// A lane in its run. `Track`s say what it does.
#[derive(Clone, Copy)]
struct Lane {
    run: usize,
    /// Instructions of the run that are through.
    repeated: u32,
    /// Bytes of the current instruction that are through.
    done: usize,
    /// Whether anything of the current instruction is through.
    begun: bool,
}

/// Pieces on their way, in order, and room that has been given back.
struct Link {
    pieces: VecDeque<Piece>,
    /// How many pieces, from the front, have been consumed. Their time is when their room is free again.
    consumed: usize,
    /// Bytes of all pieces in the queue, and of those consumed that the sender has not noticed.
    held: usize,
    /// The lane that waits for a piece.
    receiver: u32,
    /// The lane that waits for room.
    sender: u32,
    /// When the link itself is free, if it is one that crosses the network.
    free: f64,
    from_host: u32,
    to_host: u32,
}

#[derive(Clone, Copy)]
struct Piece {
    time: f64,
    bytes: usize,
}

/// A core, or one rank's share of the cores where there is one for each.
struct Core {
    free: f64,
    /// Lanes that could go on, in the order in which they could.
    ready: VecDeque<u32>,
    /// Whether an event is due when the core is free.
    awaited: bool,
    /// How many ranks share the core, and which of them, by turn, ran last.
    ranks: usize,
    current: usize,
}

/// What ranks of a host share beside cores.
struct Shared {
    memory_free: f64,
    egress_free: f64,
    ingress_free: f64,
    /// Seconds per byte of memory; 0 while the cache holds everything.
    memory_per_byte: f64,
    oversubscribed: bool,
}

pub(super) struct Engine<'a> {
    topology: &'a Topology,
    program: &'a Program,
    workload: Workload,
    lanes: Vec<Lane>,
    links: Vec<Link>,
    cores: Vec<Core>,
    core_of_rank: Vec<u32>,
    shared: Vec<Shared>,
    events: BinaryHeap<Reverse<Event>>,
    prediction: Prediction,
}

/// Ordered by time; the bits of a number that is not negative order like the number.
type Event = (u64, What);

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum What {
    LaneReady(u32),
    CoreFree(u32),
}

/// What a lane needs for its next piece.
enum Next {
    /// It can go on at this time, with a piece of so many bytes.
    At(f64, usize),
    /// Somebody else has to do something first.
    Waits,
    /// It is through.
    Finished,
}

impl<'a> Engine<'a> {
    pub(super) fn new(topology: &'a Topology, workload: Workload, program: &'a Program) -> Self {
        let places = topology.places();
        let mut ranks_of_host = vec![0_usize; topology.hosts().len()];
        for place in places {
            ranks_of_host[place.host] += 1;
        }
        let mut cores = Vec::new();
        let mut first_core = Vec::new();
        for (host, &ranks) in topology.hosts().iter().zip(&ranks_of_host) {
            first_core.push(cores.len());
            let on_core = |core: usize| (ranks - core).div_ceil(host.cores);
            cores.extend((0..ranks.min(host.cores)).map(|core| Core::new(on_core(core))));
        }
        let core_of_rank = places.iter().map(|place| {
            (first_core[place.host] + place.local % topology.hosts()[place.host].cores) as u32
        });
        let lanes = program.tracks.iter().map(|track| Lane {
            run: track.begin,
            repeated: 0,
            done: 0,
            begun: false,
        });
        let links = program.links.routes().iter().map(|route| {
            let host = |rank: u32| places[rank as usize].host as u32;
            Link::new(host(route.from), host(route.to))
        });
        let shared = topology.hosts().iter().zip(&program.footprint).zip(&ranks_of_host);
        let shared = shared.map(|((host, &footprint), &ranks)| Shared::new(host, footprint, ranks));
        Self {
            topology,
            program,
            workload,
            lanes: lanes.collect(),
            links: links.collect(),
            cores,
            core_of_rank: core_of_rank.collect(),
            shared: shared.collect(),
            events: BinaryHeap::new(),
            prediction: Prediction {
                seconds: 0.0,
                finish: vec![0.0; topology.world()],
                bytes: 0,
                switches: 0,
            },
        }
    }

    pub(super) fn run(mut self) -> Result<Prediction, SimulationError> {
        for lane in 0..self.lanes.len() as u32 {
            self.schedule(lane, 0.0);
        }
        for core in 0..self.cores.len() as u32 {
            self.dispatch(core, 0.0)?;
        }
        while let Some(Reverse((bits, what))) = self.events.pop() {
            let now = f64::from_bits(bits);
            match what {
                What::LaneReady(lane) => {
                    let core = self.core_of(lane);
                    self.cores[core as usize].ready.push_back(lane);
                    self.dispatch(core, now)?;
                }
                What::CoreFree(core) => {
                    self.cores[core as usize].awaited = false;
                    self.dispatch(core, now)?;
                }
            }
        }
        self.check_finished()?;
        let last = self.prediction.finish.iter().copied().fold(0.0, f64::max);
        Ok(Prediction { seconds: last, ..self.prediction })
    }

    /// See [`estimate`](super::estimate()).
    pub(super) fn estimate(&self) -> f64 {
        let ranks = self.topology.world();
        let (mut lane_of_rank, mut core_of_rank) = (vec![0.0_f64; ranks], vec![0.0; ranks]);
        let hosts = self.topology.hosts();
        let (mut traffic, mut sent) = (vec![0.0; hosts.len()], vec![0.0; hosts.len()]);
        let mut longest_stream = 0.0_f64;
        for track in &self.program.tracks {
            let rank = track.rank as usize;
            let host_index = self.topology.places()[rank].host;
            let host = &hosts[host_index];
            let mut lane = 0.0;
            let mut stream = 0.0;
            for run in &self.program.runs[track.begin..track.end] {
                let (count, bytes) = (f64::from(run.count), run.bytes as f64);
                let work = count * self.work(run, track.chunk_bytes, false, run.bytes, host);
                core_of_rank[rank] += work;
                lane += work;
                traffic[host_index] += count * bytes * f64::from(run.touches);
                let passes_on = run.input != NONE && run.output != NONE;
                if passes_on {
                    lane += count * self.latency(run.input);
                    if self.cores[self.core_of_rank[rank] as usize].ranks > 1 {
                        core_of_rank[rank] += count * host.switch_seconds;
                    }
                }
                if run.output != NONE && self.crosses(run.output) {
                    sent[host_index] += count * bytes;
                    stream += count * bytes;
                }
            }
            longest_stream = longest_stream.max(stream);
            lane_of_rank[rank] = lane_of_rank[rank].max(lane);
        }

        let mut given = vec![0_usize; hosts.len()];
        let mut of_host = vec![0_usize; hosts.len()];
        for (rank, place) in self.topology.places().iter().enumerate() {
            of_host[place.host] += 1;
            given[place.host] += usize::from(self.program.is_given(rank));
        }
        let network = self.topology.network();
        let stream = network.stream_bandwidth.min(network.bandwidth);
        let lanes: f64 = lane_of_rank.iter().sum();
        let mut seconds = lanes / given.iter().sum::<usize>().max(1) as f64;
        seconds = seconds.max(longest_stream / stream);
        for (rank, place) in self.topology.places().iter().enumerate() {
            let turns = of_host[place.host].div_ceil(hosts[place.host].cores) as f64;
            seconds = seconds.max(core_of_rank[rank] * turns);
        }
        for (index, &given) in given.iter().enumerate().filter(|&(_, &given)| given > 0) {
            let all = of_host[index] as f64 / given as f64;
            seconds = seconds.max(traffic[index] * all * self.shared[index].memory_per_byte);
            seconds = seconds.max(sent[index] * all / network.bandwidth);
        }
        seconds
    }

    /// Queues a lane for the time when it can go on, as far as that is known at `now`.
    fn schedule(&mut self, lane: u32, now: f64) {
        if let Next::At(time, _) = self.next(lane, now) {
            if time <= now {
                let core = self.core_of(lane);
                self.cores[core as usize].ready.push_back(lane);
                self.await_core(core, now);
            } else {
                self.events.push(Reverse((time.to_bits(), What::LaneReady(lane))));
            }
        }
    }

    /// Lets a core that is free do one step.
    fn dispatch(&mut self, core: u32, now: f64) -> Result<(), SimulationError> {
        let this = &self.cores[core as usize];
        if this.ready.is_empty() {
            return Ok(());
        }
        if this.free > now {
            self.await_core(core, now);
            return Ok(());
        }
        // Ranks that wait yield in turn, so the next that can go on is the next in turn.
        let mut chosen = 0;
        if this.ranks > 1 {
            let turns = |&lane: &u32| this.turns_to(turn_of(self.topology, self.program, lane));
            let nearest = this.ready.iter().enumerate().min_by_key(|(_, lane)| turns(lane));
            chosen = nearest.map_or(0, |(index, _)| index);
        }
        let this = &mut self.cores[core as usize];
        if let Some(lane) = this.ready.remove(chosen) {
            self.step(lane, core, now)?;
        }
        if !self.cores[core as usize].ready.is_empty() {
            self.await_core(core, now);
        }
        Ok(())
    }

    fn await_core(&mut self, core: u32, now: f64) {
        let this = &mut self.cores[core as usize];
        if !std::mem::replace(&mut this.awaited, true) {
            let free = this.free.max(now);
            self.events.push(Reverse((free.to_bits(), What::CoreFree(core))));
        }
    }

    /// Moves one piece of a lane that is ready, on a core that is free.
    fn step(&mut self, lane: u32, core: u32, now: f64) -> Result<(), SimulationError> {
        let Next::At(_, bytes) = self.next(lane, now) else { return Ok(()) };
        let program = self.program;
        let track = &program.tracks[lane as usize];
        let state = self.lanes[lane as usize];
        let run = &program.runs[state.run];
        let host_index = self.topology.places()[track.rank as usize].host;
        let host = &self.topology.hosts()[host_index];

        let left = run.bytes - state.done;
        if bytes > left || (bytes < left && bytes == 0) {
            let link = program.links.seen_by_receiver(run.input);
            let expected = run.bytes;
            return Err(SimulationError::Length { rank: track.rank as usize, link, expected });
        }

        let mut end = now + self.work(run, track.chunk_bytes, state.begun, bytes, host);
        let this = &mut self.cores[core as usize];
        if this.ranks > 1 {
            let turn = turn_of(self.topology, program, lane);
            let turns = this.turns_to(turn);
            this.current = turn;
            end += turns as f64 * host.switch_seconds;
            self.prediction.switches += turns as u64;
        }
        let shared = &mut self.shared[host_index];
        if shared.memory_per_byte > 0.0 && run.touches > 0 {
            let traffic = bytes as f64 * f64::from(run.touches);
            shared.memory_free = shared.memory_free.max(now) + traffic * shared.memory_per_byte;
            end = end.max(shared.memory_free);
        }
        this.free = end;

        self.advance(lane, bytes);
        let finish = &mut self.prediction.finish[track.rank as usize];
        *finish = finish.max(end);
        if run.input != NONE {
            self.consume(run.input, now, end);
        }
        if run.output != NONE {
            self.post(run.output, bytes, now, end);
        }
        self.schedule(lane, end);
        Ok(())
    }

    /// Seconds that the core is busy with a piece of `bytes` bytes.
    fn work(&self, run: &Run, chunk: usize, begun: bool, bytes: usize, host: &Host) -> f64 {
        // Pieces that are taken together cost as much as apart.
        let pieces = bytes.div_ceil(chunk).max(1) as f64;
        let size = bytes as f64;
        let cost = |link: u32, end: fn(&PieceCost) -> &Cost| {
            let costs = self.link_costs(link);
            let cost = end(costs.piece(self.workload.protocol));
            let factor = if self.takes_turns(link) { costs.fixed_in_turn } else { 1.0 };
            pieces * factor * cost.fixed + size * cost.per_byte
        };
        let mut seconds = if begun { 0.0 } else { host.instruction_seconds };
        if run.input != NONE {
            seconds += cost(run.input, |piece| &piece.recv);
        }
        if run.output != NONE {
            seconds += cost(run.output, |piece| &piece.send);
        }
        seconds
            + match run.work {
                Work::Move => 0.0,
                Work::Copy => size * host.copy_per_byte,
                Work::Reduce => size * host.reduce_per_byte.of(self.workload.dtype),
            }
    }

    fn advance(&mut self, lane: u32, bytes: usize) {
        let state = &mut self.lanes[lane as usize];
        let run = &self.program.runs[state.run];
        state.done += bytes;
        state.begun = true;
        if state.done == run.bytes {
            state.done = 0;
            state.begun = false;
            state.repeated += 1;
            if state.repeated == run.count {
                state.repeated = 0;
                state.run += 1;
            }
        }
    }

    fn consume(&mut self, link: u32, now: f64, end: f64) {
        let latency = self.latency(link);
        let this = &mut self.links[link as usize];
        if let Some(piece) = this.pieces.get_mut(this.consumed) {
            piece.time = end + latency;
            this.consumed += 1;
        }
        let sender = std::mem::replace(&mut this.sender, NONE);
        if sender != NONE {
            self.schedule(sender, now);
        }
    }

    fn post(&mut self, link: u32, bytes: usize, now: f64, end: f64) {
        self.prediction.bytes += bytes as u64;
        let time = self.arrival(link, bytes, end);
        let this = &mut self.links[link as usize];
        this.pieces.push_back(Piece { time, bytes });
        this.held += room_of(bytes);
        let receiver = std::mem::replace(&mut this.receiver, NONE);
        if receiver != NONE {
            self.schedule(receiver, now);
        }
    }

    /// When a piece whose sender is done at `end` can be seen.
    fn arrival(&mut self, link: u32, bytes: usize, end: f64) -> f64 {
        let latency = self.latency(link);
        let this = &mut self.links[link as usize];
        if this.from_host == this.to_host {
            return end + latency;
        }
        let network = self.topology.network();
        let wire = bytes as f64 / network.bandwidth;
        let egress = &mut self.shared[this.from_host as usize].egress_free;
        let leaves = end.max(*egress).max(this.free);
        *egress = leaves + wire;
        this.free = leaves + bytes as f64 / network.stream_bandwidth.min(network.bandwidth);
        let ingress = &mut self.shared[this.to_host as usize].ingress_free;
        *ingress = ingress.max(leaves) + wire;
        ingress.max(this.free) + latency
    }

    /// What a lane needs next. A lane that waits for somebody else is noted at the link.
    fn next(&mut self, lane: u32, now: f64) -> Next {
        let track = &self.program.tracks[lane as usize];
        let state = self.lanes[lane as usize];
        if state.run == track.end {
            return Next::Finished;
        }
        let run = &self.program.runs[state.run];
        let mut time = now;
        let mut bytes =
            (run.bytes - state.done).min(self.piece_bytes(run.bytes, track.chunk_bytes));
        if run.input != NONE {
            let link = &mut self.links[run.input as usize];
            match link.pieces.get(link.consumed) {
                Some(piece) => {
                    time = time.max(piece.time);
                    bytes = piece.bytes;
                }
                None => {
                    link.receiver = lane;
                    return Next::Waits;
                }
            }
        }
        if run.output != NONE {
            let buffer = self.link_costs(run.output).buffer_bytes;
            let chunk = self.topology.max_chunk_bytes().max(bytes);
            let capacity = buffer.max(crate::MIN_LINK_CHUNKS.saturating_mul(chunk));
            let link = &mut self.links[run.output as usize];
            match link.room_at(now, room_of(bytes), capacity) {
                Some(room) => time = time.max(room),
                None => {
                    link.sender = lane;
                    return Next::Waits;
                }
            }
        }
        Next::At(time, bytes)
    }

    /// The longest piece of a message.
    fn piece_bytes(&self, message: usize, chunk: usize) -> usize {
        match self.workload.detail {
            Detail::Pieces => chunk,
            Detail::AtMost(pieces) => chunk.max(message.div_ceil(pieces.get())),
        }
    }

    fn core_of(&self, lane: u32) -> u32 {
        self.core_of_rank[self.program.tracks[lane as usize].rank as usize]
    }

    fn latency(&self, link: u32) -> f64 {
        self.link_costs(link).latency
    }

    /// Whether the ends of a link take turns on the cores of their host.
    fn takes_turns(&self, link: u32) -> bool {
        let host = self.links[link as usize].from_host as usize;
        !self.crosses(link) && self.shared[host].oversubscribed
    }

    fn crosses(&self, link: u32) -> bool {
        let link = &self.links[link as usize];
        link.from_host != link.to_host
    }

    fn link_costs(&self, link: u32) -> &'a crate::topology::Link {
        if self.crosses(link) {
            &self.topology.network().link
        } else {
            &self.topology.hosts()[self.links[link as usize].from_host as usize].link
        }
    }

    fn check_finished(&self) -> Result<(), SimulationError> {
        for (state, track) in self.lanes.iter().zip(&self.program.tracks) {
            if state.run == track.end {
                continue;
            }
            let before = &self.program.runs[track.begin..state.run];
            let instruction = before.iter().map(|run| run.count as usize).sum::<usize>();
            return Err(SimulationError::Stuck {
                rank: track.rank as usize,
                lane: track.lane as usize,
                instruction: instruction + state.repeated as usize,
            });
        }
        Ok(())
    }
}

impl Link {
    fn new(from_host: u32, to_host: u32) -> Self {
        Self {
            pieces: VecDeque::new(),
            consumed: 0,
            held: 0,
            receiver: NONE,
            sender: NONE,
            free: 0.0,
            from_host,
            to_host,
        }
    }

    /// When there is room for `bytes` more, if that is known.
    fn room_at(&mut self, now: f64, bytes: usize, capacity: usize) -> Option<f64> {
        while self.consumed > 0 && self.pieces[0].time <= now {
            self.held -= room_of(self.pieces[0].bytes);
            self.pieces.pop_front();
            self.consumed -= 1;
        }
        let mut held = self.held;
        let mut time = now;
        for piece in self.pieces.iter().take(self.consumed) {
            if held + bytes <= capacity {
                break;
            }
            held -= room_of(piece.bytes);
            time = piece.time;
        }
        (held + bytes <= capacity).then_some(time)
    }
}

/// Bytes of a link that a piece takes: an empty one takes a line too.
fn room_of(bytes: usize) -> usize {
    bytes.max(64)
}

impl Core {
    fn new(ranks: usize) -> Self {
        // The last in turn ran last, so that the first has to take over even in a call of one step.
        Self { free: 0.0, ready: VecDeque::new(), awaited: false, ranks, current: ranks - 1 }
    }

    /// How many ranks have their turn until this one has.
    fn turns_to(&self, turn: usize) -> usize {
        (turn + self.ranks - self.current) % self.ranks
    }
}

/// A lane's rank's place among those of its core.
fn turn_of(topology: &Topology, program: &Program, lane: u32) -> usize {
    let place = topology.places()[program.tracks[lane as usize].rank as usize];
    place.local / topology.hosts()[place.host].cores
}

impl Shared {
    fn new(host: &Host, footprint: usize, ranks: usize) -> Self {
        let spills = footprint >= host.cache_bytes;
        Self {
            memory_free: 0.0,
            egress_free: 0.0,
            ingress_free: 0.0,
            memory_per_byte: if spills { 1.0 / host.memory_bandwidth } else { 0.0 },
            oversubscribed: host.is_oversubscribed(ranks),
        }
    }
}
