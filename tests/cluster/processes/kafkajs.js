// A producer and a consumer with KafkaJS: `node kafkajs.js BOOTSTRAP TOPIC LOG`. Prints one line of
// JSON for each acknowledged value, and for each record that was read, until standard input ends.
// What the client has to say goes to the file LOG.
'use strict'

const fs = require('fs')
const { Kafka, logLevel } = require('kafkajs')

const [bootstrap, topic, logFile] = process.argv.slice(2)
const PARTITIONS = 3
const retry = { initialRetryTime: 100, maxRetryTime: 1000, retries: 200 }

// Requests and responses are left out: there are too many of them.
const writeLog = ({ namespace, label, log }) => {
  if (namespace !== 'Connection' || label !== 'DEBUG' || !log.message.includes('(key')) {
    fs.appendFileSync(logFile, JSON.stringify({ namespace, label, ...log }) + '\n')
  }
}

const kafka = new Kafka({
  clientId: 'cluster',
  brokers: bootstrap.split(','),
  logLevel: logLevel.DEBUG,
  logCreator: () => writeLog,
  connectionTimeout: 2000,
  retry,
})

let isStopping = false
process.stdin.on('end', () => { isStopping = true }).resume()

const print = line => process.stdout.write(JSON.stringify(line) + '\n')
const pause = ms => new Promise(resolve => setTimeout(resolve, ms))

async function main () {
  const producer = kafka.producer({ idempotent: true, maxInFlightRequests: 1, retry })
  const consumer = kafka.consumer({ groupId: topic, sessionTimeout: 10000, heartbeatInterval: 500, maxWaitTimeInMs: 200, retry })
  await producer.connect()
  await consumer.connect()
  await consumer.subscribe({ topics: [topic], fromBeginning: true })
  await consumer.run({
    autoCommitInterval: 200,
    eachMessage: async ({ partition, message }) => {
      const value = message.value.toString()
      print({ kind: 'read', value, partition, offset: Number(message.offset) })
    },
  })
  for (let number = 0; !isStopping; number++) {
    const message = { value: String(number), partition: number % PARTITIONS }
    const [placed] = await producer.send({ topic, acks: -1, messages: [message] })
    const offset = Number(placed.baseOffset)
    print({ kind: 'acknowledged', value: message.value, partition: message.partition, offset })
    await pause(10)
  }
  await producer.disconnect()
  await consumer.disconnect()
}

main().then(() => process.exit(0), error => {
  console.error(error)
  process.exit(1)
})
