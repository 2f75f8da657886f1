//! The tasks that serve the installed experts. Called by `cli`.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use super::delivery::Delivery;
use super::execution::Worker;
use super::experts::Experts;
use super::scheduler::Scheduler;
use store::Store;

impl Experts {
    /// Drains the queue, fires clocks and delivers messages, until the process ends.
    pub fn start(self: &Arc<Self>, shutdown: &CancellationToken) {
        let started = Worker::new(self, shutdown.clone(), None).zip(self.agents.store());
        let Some((worker, store)) = started else {
            tracing::error!(target: "respool::expert", "there is no store, so no process is executed");
            return;
        };
        self.tasks.spawn(worker.run_worker());
        self.tasks.spawn(self.scheduler(Arc::clone(store)).run(shutdown.clone()));
        self.tasks.spawn(Arc::clone(self).prune_packages(shutdown.clone()));
        // Without a gateway the outbox itself is the delivery.
        if let Some(gateway) = self.gateway.clone() {
            let (store, stirred) = (Arc::clone(store), Arc::clone(&self.delivery_stirred));
            self.tasks.spawn(Delivery { gateway, store, stirred }.run(shutdown.clone()));
        }
    }

    fn scheduler(self: &Arc<Self>, store: Arc<Store>) -> Scheduler {
        let experts = Arc::clone(self);
        let is_held =
            Box::new(move |name: &str| experts.get(name).is_none() || experts.describe_hold(name).is_some());
        Scheduler::new(Arc::clone(&self.catalog), store).with_hold(is_held)
    }
}
