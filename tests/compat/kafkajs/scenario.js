// One scenario with KafkaJS: `node scenario.js NAME BOOTSTRAP UNIQUE` prints what it saw as JSON.
// The tests in ../test_kafkajs.py say what that has to be, and for `read`, which takes more
// arguments, those in ../test_life.py; for `control`, those in ../test_control_batches.py.
'use strict'

const { Kafka, CompressionTypes, logLevel } = require('kafkajs')

const [scenarioName, bootstrap, unique, ...more] = process.argv.slice(2)
const DEADLINE_MS = 30000

const kafka = new Kafka({
  clientId: 'compat',
  brokers: [bootstrap],
  logLevel: logLevel.NOTHING,
  retry: { initialRetryTime: 50, retries: 10 },
})
const group = {
  groupId: unique,
  sessionTimeout: 6000,
  heartbeatInterval: 200,
  rebalanceTimeout: 6000,
  maxWaitTimeInMs: 200,
}

function until (isDone) {
  return new Promise((resolve, reject) => {
    const began = Date.now()
    const timer = setInterval(() => {
      if (isDone()) {
        clearInterval(timer)
        resolve()
      } else if (Date.now() - began > DEADLINE_MS) {
        clearInterval(timer)
        reject(new Error('what was waited for did not happen'))
      }
    }, 10)
  })
}

async function withAdmin (use) {
  const admin = kafka.admin()
  await admin.connect()
  try {
    return await use(admin)
  } finally {
    await admin.disconnect()
  }
}

function createTopic (topic, numPartitions = 1) {
  return withAdmin(admin => admin.createTopics({
    topics: [{ topic, numPartitions, replicationFactor: 1 }],
    waitForLeaders: true,
  }))
}

async function withProducer (settings, use) {
  const producer = kafka.producer(settings)
  await producer.connect()
  try {
    return await use(producer)
  } finally {
    await producer.disconnect()
  }
}

// Reads `count` messages from the beginning, as a group of its own unless told.
async function read (topic, count, settings = {}) {
  const consumer = kafka.consumer({ ...group, groupId: `${unique}-${topic}-reader`, ...settings })
  const messages = []
  await consumer.connect()
  await consumer.subscribe({ topic, fromBeginning: true })
  await consumer.run({ eachMessage: async ({ message }) => { messages.push(message) } })
  await until(() => messages.length >= count)
  await consumer.disconnect()
  return messages.map(message => ({
    offset: message.offset,
    key: message.key && message.key.toString(),
    value: message.value && message.value.toString(),
    timestamp: message.timestamp,
    headers: Object.fromEntries(
      Object.entries(message.headers).map(([name, value]) => [name, String(value)])
    ),
  }))
}

const scenarios = {
  async records () {
    await createTopic(unique)
    const offsets = []
    await withProducer({}, async producer => {
      for (const acks of [-1, 1, 0]) {
        for (const compression of [CompressionTypes.None, CompressionTypes.GZIP]) {
          const [report] = await producer.send({
            topic: unique,
            acks,
            compression,
            messages: [{
              key: `${acks}`,
              value: `value ${compression} `.repeat(50),
              timestamp: '1234',
              headers: { a: ['1', '2'], b: 'x' },
            }, { key: null, value: null }],
          }) || []
          offsets.push(acks === 0 ? null : report.baseOffset)
        }
      }
    })
    return { offsets, messages: await read(unique, 12) }
  },

  async idempotent () {
    await createTopic(unique)
    await withProducer({ idempotent: true, maxInFlightRequests: 1 }, async producer => {
      for (let number = 0; number < 20; number++) {
        await producer.send({ topic: unique, messages: [{ value: `${number}` }] })
      }
    })
    return (await read(unique, 20)).map(message => message.value)
  },

  async group () {
    await createTopic(unique, 4)
    const start = async () => {
      const consumer = kafka.consumer(group)
      const member = { consumer, partitions: [], values: [] }
      consumer.on(consumer.events.GROUP_JOIN, ({ payload }) => {
        member.partitions = payload.memberAssignment[unique] || []
      })
      await consumer.connect()
      await consumer.subscribe({ topic: unique, fromBeginning: true })
      await consumer.run({
        eachMessage: async ({ message }) => { member.values.push(message.value.toString()) },
      })
      return member
    }
    const first = await start()
    const second = await start()
    await until(() => first.partitions.length === 2 && second.partitions.length === 2)
    const shared = [...first.partitions, ...second.partitions].sort()
    const send = number => withProducer({}, producer => producer.send({
      topic: unique,
      messages: [0, 1, 2, 3].map(partition => ({ partition, value: `${number}.${partition}` })),
    }))
    const values = () => [...new Set([...first.values, ...second.values])].sort()
    await send(0)
    await until(() => values().length === 4)
    await second.consumer.disconnect()
    await until(() => first.partitions.length === 4)
    await send(1)
    await until(() => values().length === 8)
    await first.consumer.disconnect()
    return { shared, values: values() }
  },

  async transactions () {
    const source = `${unique}-source`
    const target = `${unique}-target`
    await createTopic(source)
    await createTopic(target, 2)
    const settings = { transactionalId: unique, idempotent: true, maxInFlightRequests: 1 }
    await withProducer(settings, async producer => {
      for (const [number, isCommit] of [true, false, true].entries()) {
        const transaction = await producer.transaction()
        for (const partition of [0, 1]) {
          await transaction.send({ topic: target, messages: [{ partition, value: `${number}` }] })
        }
        await transaction.sendOffsets({
          consumerGroupId: unique,
          topics: [{ topic: source, partitions: [{ partition: 0, offset: `${number + 1}` }] }],
        })
        await (isCommit ? transaction.commit() : transaction.abort())
      }
    })
    const committed = await withAdmin(
      admin => admin.fetchOffsets({ groupId: unique, topics: [source] })
    )
    const seen = await read(target, 4)
    const all = await read(target, 6, { readUncommitted: true, groupId: `${unique}-uncommitted` })
    return {
      committed: committed[0].partitions[0].offset,
      seen: seen.map(message => message.value).sort(),
      all: all.map(message => message.value).sort(),
    }
  },

  // `read ... TOPIC OFFSET COUNT SETTINGS`: goes to an offset, and reads until it has seen so many
  // messages and asked in vain for more.
  async read () {
    const [topic, offset, count, settings] = more
    const { fromBeginning, ...others } = JSON.parse(settings)
    const consumer = kafka.consumer({ ...group, ...others })
    const messages = []
    let asked = 0
    consumer.on(consumer.events.FETCH, () => { asked++ })
    await consumer.connect()
    await consumer.subscribe({ topic, fromBeginning })
    await consumer.run({ eachMessage: async ({ message }) => { messages.push(message) } })
    consumer.seek({ topic, partition: 0, offset })
    await until(() => messages.length >= Number(count))
    const before = asked
    await until(() => asked >= before + 3)
    await consumer.disconnect()
    const text = bytes => bytes === null ? null : bytes.toString()
    return messages.map(({ offset, key, value }) => [Number(offset), text(key), text(value)])
  },

  async admin () {
    await createTopic(unique, 2)
    await withProducer({}, producer => producer.send({
      topic: unique,
      messages: [0, 1, 2, 3].map(number => ({
        partition: 0, value: `${number}`, timestamp: `${1000 + 10 * number}`,
      })),
    }))
    return withAdmin(async admin => {
      const seen = {}
      seen.again = await admin.createTopics({ topics: [{ topic: unique }] })
      seen.isListed = (await admin.listTopics()).includes(unique)
      await admin.createPartitions({ topicPartitions: [{ topic: unique, count: 3 }] })
      const metadata = await admin.fetchTopicMetadata({ topics: [unique] })
      seen.partitions = metadata.topics[0].partitions.map(each => each.partitionId).sort()
      const first = topic => topic.find(each => each.partition === 0)
      seen.offsets = first(await admin.fetchTopicOffsets(unique))
      seen.byTime = first(await admin.fetchTopicOffsetsByTimestamp(unique, 1015))
      await admin.setOffsets({
        groupId: unique, topic: unique, partitions: [{ partition: 0, offset: '3' }],
      })
      const [{ partitions }] = await admin.fetchOffsets({ groupId: unique, topics: [unique] })
      seen.committed = first(partitions).offset
      const { groups } = await admin.describeGroups([unique])
      seen.groupState = groups[0].state
      seen.isGroupListed = (await admin.listGroups()).groups.some(each => each.groupId === unique)
      await admin.deleteGroups([unique])
      seen.isGroupListedAfter =
        (await admin.listGroups()).groups.some(each => each.groupId === unique)
      const resource = { type: 2, name: unique }
      await admin.alterConfigs({
        resources: [{ ...resource, configEntries: [{ name: 'retention.ms', value: '9999' }] }],
      })
      const configs = await admin.describeConfigs({ resources: [resource] })
      seen.retention = configs.resources[0].configEntries
        .find(entry => entry.configName === 'retention.ms').configValue
      await admin.deleteTopicRecords({
        topic: unique, partitions: [{ partition: 0, offset: '2' }],
      })
      seen.low = first(await admin.fetchTopicOffsets(unique)).low
      const cluster = await admin.describeCluster()
      seen.brokers = cluster.brokers.map(broker => `${broker.host}:${broker.port}`)
      await admin.deleteTopics({ topics: [unique] })
      seen.isListedAfter = (await admin.listTopics()).includes(unique)
      return seen
    })
  },

  // Reads a topic to its end, of which the last batch is one of control, and commits that.
  async control () {
    const [topic, count, end] = more
    const consumer = kafka.consumer(group)
    const values = []
    let offset = null
    await consumer.connect()
    await consumer.subscribe({ topic, fromBeginning: true })
    await consumer.run({
      autoCommit: false,
      eachBatchAutoResolve: true,
      eachBatch: async ({ batch }) => {
        values.push(...batch.messages.map(message => message.value.toString()))
        offset = String(BigInt(batch.lastOffset()) + 1n)
      },
    })
    await until(() => values.length >= Number(count) && offset === end)
    await consumer.disconnect()
    return { values, offset }
  },
}

scenarios[scenarioName]().then(
  seen => { console.log(JSON.stringify(seen)) },
  error => {
    console.error(error)
    process.exitCode = 1
  }
)
