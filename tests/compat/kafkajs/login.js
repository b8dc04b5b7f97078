// One record over SASL_SSL with KafkaJS: `node login.js BOOTSTRAP TOPIC`, the login on standard
// input, prints the values that were read as JSON. The tests are in ../test_sasl.py.
'use strict'

const fs = require('fs')
const { Kafka, logLevel } = require('kafkajs')

const [bootstrap, topic] = process.argv.slice(2)
const { ca, mechanism, username, password } = JSON.parse(fs.readFileSync(0, 'utf8'))

async function run () {
  const kafka = new Kafka({
    clientId: 'login',
    brokers: [bootstrap],
    logLevel: logLevel.NOTHING,
    ssl: { ca: [fs.readFileSync(ca, 'utf8')] },
    sasl: { mechanism, username, password },
    retry: { initialRetryTime: 50, retries: 10 },
  })
  const producer = kafka.producer()
  await producer.connect()
  await producer.send({ topic, messages: [{ value: 'value' }] })
  await producer.disconnect()
  const values = []
  const consumer = kafka.consumer({ groupId: topic, sessionTimeout: 6000, heartbeatInterval: 200 })
  await consumer.connect()
  await consumer.subscribe({ topic, fromBeginning: true })
  await new Promise((resolve, reject) => {
    consumer.run({
      eachMessage: async ({ message }) => {
        values.push(message.value.toString())
        resolve()
      },
    }).catch(reject)
  })
  await consumer.disconnect()
  return values
}

run().then(
  values => { console.log(JSON.stringify(values)) },
  error => {
    console.error(error)
    process.exitCode = 1
  }
)
