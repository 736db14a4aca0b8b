//! Where scenarios about news start: several clients that all listen.

use crate::common::World;

/// Three clients that listen, and a server with a GET stream.
pub(crate) fn crowd() -> (World, [usize; 3]) {
    let mut w = World::new();
    w.upstream.offers_stream = true;
    let clients = [w.joined(), w.joined(), w.joined()];
    for client in clients {
        w.listen(client);
    }
    w.call(clients[0]);
    (w, clients)
}
